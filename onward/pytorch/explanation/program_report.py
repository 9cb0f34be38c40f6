"""Describe a captured program: its types, its operators, and which rewrites fired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onward.passes.composites import is_call
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.explanation.explained_facts import (
    FiredRewrite,
    OperatorRow,
    ProgramFacts,
    ProgramTensor,
)
from onward.pytorch.explanation.node_origins import NodeOrigins
from onward.pytorch.explanation.saved_tensors import show_type

_STANDARD = ("", "ai.onnx")


def describe_program(
    program: CapturedProgram, path: str, origins: NodeOrigins, parameters: Iterable[str]
) -> ProgramFacts:
    """The facts of a program; `parameters` are those of the captured module."""
    capture, joint = program.capture, program.joint
    forward, *backward = program.graphs
    of_module = {name for name, of in capture.tensors.items() if of in {*parameters}}
    inputs = {str(value.name): value for value in capture.model.graph.inputs}
    outputs = {str(value.name): value for value in capture.model.graph.outputs}
    results = dict.fromkeys(name for name in capture.results if isinstance(name, str))
    by_index = {index: name for name, index in capture.inputs.items()}
    changed = (
        by_index.get(target, f"input {target}") if isinstance(target, int) else target
        for target in capture.changes.values()
    )
    lowered = [node for graph in program.graphs for node in graph.graph]
    graphs = {
        "captured": [capture.model],
        "joint": [joint.model],
        "forward": [forward],
        "backward": backward,
    }
    return ProgramFacts(
        path=path,
        engine=program.engine.name,
        inputs=tuple(_tensor(inputs[n], n in joint.gradients) for n in capture.inputs),
        results=tuple(_tensor(outputs[n], n in program.differentiable) for n in results),
        changes=tuple(changed),
        guards=tuple(str(c) for c in capture.guards.conditions if "int_oo" not in str(c)),
        parameters=len(of_module),
        parameters_with_gradients=len(of_module & joint.gradients.keys()),
        buffers=len(capture.tensors) - len(of_module),
        nodes={name: sum(len(each.graph) for each in found) for name, found in graphs.items()},
        operators=_operators([_count(found) for found in graphs.values()]),
        composites=_rewrites(filter(is_call, joint.model.graph), origins),
        kept_composites=sum(map(is_call, lowered)),
        fusions=_rewrites((n for n in lowered if _is_fused(n)), origins),
        seconds=dict(program.seconds),
    )


def operator_name(node: ir.Node) -> str:
    """
    >>> operator_name(ir.node("Gelu", [], domain="com.microsoft"))
    'com.microsoft::Gelu'
    """
    return node.op_type if node.domain in _STANDARD else f"{node.domain}::{node.op_type}"


def _is_fused(node: ir.Node) -> bool:
    return node.domain not in _STANDARD and not is_call(node)


def _tensor(value: ir.Value, has_gradient: bool) -> ProgramTensor:
    shape = [size if isinstance(size, int) else str(size) for size in value.shape or ()]
    return ProgramTensor(
        name=str(value.name), dtype=show_type(value), shape=tuple(shape), has_gradient=has_gradient
    )


def _count(models: Iterable[ir.Model]) -> Counter[str]:
    return Counter(operator_name(node) for model in models for node in model.graph)


def _operators(counts: Sequence[Counter[str]]) -> tuple[OperatorRow, ...]:
    """The operators of the captured, joint, forward and backward graph; the most frequent first."""
    captured, joint, forward, backward = counts
    rows = [
        OperatorRow(
            operator=name,
            captured=captured[name],
            joint=joint[name],
            forward=forward[name],
            backward=backward[name],
        )
        for name in dict.fromkeys(name for count in counts for name in count)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.forward - row.backward, row.operator)))


def _rewrites(nodes: Iterable[ir.Node], origins: NodeOrigins) -> tuple[FiredRewrite, ...]:
    """Nodes by operator, the most frequent first, and the submodules that they come from."""
    found: dict[str, Counter[str]] = {}
    for node in nodes:
        found.setdefault(operator_name(node), Counter())[origins.of_node(node)] += 1
    rows = [
        FiredRewrite(operator=name, count=modules.total(), modules=dict(modules.most_common()))
        for name, modules in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.count, row.operator)))
