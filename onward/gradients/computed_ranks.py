"""Find the ranks of tensors whose shapes a model computes.

Older exporters write the shape of a view as Shape, Gather and Concat, and a squeeze as an If: the
rank of the result is known only when those are folded, and gradient rules need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from onward.graph.graph_ops import taken_names
from onward.passes.fold import as_graph_inputs
from onward.passes.pipelines import FOLD_SHAPES


def infer_computed_ranks(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> None:
    """Fold computed shapes, in place, if there is a tensor of unknown rank.

    The values that `outputs` and `wrt` name keep their names and their consumers.
    """
    if any(_has_no_rank(value) for node in model.graph for value in node.outputs):
        with (
            as_graph_inputs(model.graph, wrt),
            _as_outputs(model.graph, outputs),
            _replaced_by_new_inputs(model, wrt),
        ):
            FOLD_SHAPES(model)


def _has_no_rank(value: ir.Value) -> bool:
    return bool(value.name) and value.shape is None and isinstance(value.type, ir.TensorType)


@contextmanager
def _as_outputs(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """Make values the last graph outputs for a while, so that no pass renames or drops them."""
    count, known = len(graph.outputs), _outputs_by_name(graph)
    graph.outputs.extend(known[name] for name in names if name in known)
    yield
    graph.outputs[count:] = []


@contextmanager
def _replaced_by_new_inputs(model: ir.Model, names: Sequence[str]) -> Iterator[None]:
    """Make consumers read new inputs instead of values, for a while: no pass folds across them."""
    graph, taken = model.graph, taken_names(model)
    cuts = {}
    for name, value in _outputs_by_name(graph).items():
        if name in names:
            wish = f"{name}/cut"
            while wish in taken:
                wish += "_"
            taken.add(wish)
            cuts[name] = ir.val(wish, type=value.type, shape=value.shape)
            value.replace_all_uses_with(cuts[name])
    graph.inputs.extend(cuts.values())
    with _as_outputs(graph, list(cuts)):
        yield
        made = _outputs_by_name(graph)
    for name, cut in cuts.items():
        cut.replace_all_uses_with(made[name])
        graph.inputs.remove(cut)


def _outputs_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    return {str(value.name): value for node in graph for value in node.outputs if value.name}
