"""Ranks that only show once shapes are computed: what exporters leave to the engine.

Older exporters write the shape of a view as Shape, Gather and Concat, and a squeeze as an If: how
many axes the result has is known only when those are folded, and the rules for gradients ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from onward.graph.graph_ops import taken_names
from onward.passes.pipelines import FOLD_SHAPES


def know_ranks(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> None:
    """Fold what shapes are made of, in place, if there is a tensor of unknown rank.

    What `outputs` and `wrt` name keeps its name, and all that depended on it still does.
    """
    if any(_is_vague(value) for node in model.graph for value in node.outputs):
        with kept_open(model.graph, wrt), _returned(model.graph, outputs), _cut(model, wrt):
            FOLD_SHAPES(model)


@contextmanager
def kept_open(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """Let no pass take these initializers for constants: who asks for gradients updates them."""
    opened = [graph.initializers[n] for n in names if n in graph.initializers]
    opened = [value for value in opened if not value.is_graph_input()]
    graph.inputs.extend(opened)
    yield
    for value in opened:
        graph.inputs.remove(value)


def _is_vague(value: ir.Value) -> bool:
    return bool(value.name) and value.shape is None and isinstance(value.type, ir.TensorType)


@contextmanager
def _returned(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """Let no pass rename or drop these values: for now they are the last outputs."""
    count, known = len(graph.outputs), _made(graph)
    graph.outputs.extend(known[name] for name in names if name in known)
    yield
    graph.outputs[count:] = []


@contextmanager
def _cut(model: ir.Model, names: Sequence[str]) -> Iterator[None]:
    """Let no pass look through these values: for now, who reads one reads an input instead."""
    graph, taken = model.graph, taken_names(model)
    cuts = {}
    for name, value in _made(graph).items():
        if name in names:
            wish = f"{name}/cut"
            while wish in taken:
                wish += "_"
            taken.add(wish)
            cuts[name] = ir.val(wish, type=value.type, shape=value.shape)
            value.replace_all_uses_with(cuts[name])
    graph.inputs.extend(cuts.values())
    with _returned(graph, list(cuts)):
        yield
        made = _made(graph)
    for name, cut in cuts.items():
        cut.replace_all_uses_with(made[name])
        graph.inputs.remove(cut)


def _made(graph: ir.Graph) -> dict[str, ir.Value]:
    return {str(value.name): value for node in graph for value in node.outputs if value.name}
