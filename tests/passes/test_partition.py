"""Partition: every needed node once, parts convex, in topological order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from onward.graph.builder import OpBuilder
from onward.passes.partition import Part, extract, partition
from tests.passes.running import run_reference


@st.composite
def graphs(draw: st.DrawFn) -> tuple[ir.Model, dict[ir.Node, int]]:
    """A random graph of Adds, and a random provider (of three) for each node."""
    op = OpBuilder()
    values = [op.input("x", "float32", (2,)), op.input("y", "float32", (2,))]
    for _ in range(draw(st.integers(1, 14))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        values.append(op.Add(a, b))
    model = op.model(
        **{f"out{i}": value for i, value in enumerate(values[2:]) if draw(st.booleans()) or i == 0}
    )
    return model, {node: draw(st.integers(0, 2)) for node in model.graph}


def needed(model: ir.Model) -> set[ir.Node]:
    found: set[ir.Node] = set()
    for node in reversed(list(model.graph)):
        (output,) = node.outputs
        if output.is_graph_output() or any(user in found for user, _ in output.uses()):
            found.add(node)
    return found


def part_of(parts: list[Part]) -> dict[ir.Node, int]:
    return {node: number for number, part in enumerate(parts) for node in part.nodes}


@given(graphs())
def test_every_node_is_in_one_part_of_its_provider(
    drawn: tuple[ir.Model, dict[ir.Node, int]],
) -> None:
    model, provider = drawn
    parts = partition(model.graph, provider.__getitem__)
    nodes = [node for part in parts for node in part.nodes]
    assert len(nodes) == len(set(nodes)) == len(needed(model))
    assert all(provider[node] == part.provider for part in parts for node in part.nodes)


@given(graphs())
def test_each_part_runs_after_its_needs(
    drawn: tuple[ir.Model, dict[ir.Node, int]],
) -> None:
    """Which also means that each is convex: a path out of it and back would be a circle."""
    model, provider = drawn
    parts = partition(model.graph, provider.__getitem__)
    place = part_of(parts)
    for node in needed(model):
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and place[producer] != place[node]:
                assert place[producer] < place[node]
                assert place[producer] in parts[place[node]].needs


@given(graphs())
def test_one_provider_gets_one_part(drawn: tuple[ir.Model, dict[ir.Node, int]]) -> None:
    model, _ = drawn
    assert len(partition(model.graph, lambda _: 0)) == 1


@given(graphs())
def test_parts_compute_the_model_outputs(drawn: tuple[ir.Model, dict[ir.Node, int]]) -> None:
    model, provider = drawn
    parts = partition(model.graph, provider.__getitem__)
    values = {"x": np.array([1, 2], np.float32), "y": np.array([3, -4], np.float32)}
    expected = run_reference(model, values)
    for piece in extract(model.graph, parts):
        feeds = {str(v.name): values[str(v.name)] for v in piece.graph.inputs}
        names = [str(v.name) for v in piece.graph.outputs]
        values.update(zip(names, run_reference(piece, feeds), strict=True))
    for value, wanted in zip(model.graph.outputs, expected, strict=True):
        np.testing.assert_array_equal(values[str(value.name)], wanted)


def test_path_through_another_provider_splits_a_part() -> None:
    op = OpBuilder()
    a = op.Neg(op.input("x", "float32", (1,)))
    b = op.Abs(a)
    model = op.model(c=op.Add(a, b))
    number = {"Neg": 0, "Abs": 1, "Add": 0}
    parts = partition(model.graph, lambda node: number[node.op_type])
    assert [[node.op_type for node in part.nodes] for part in parts] == [["Neg"], ["Abs"], ["Add"]]


def test_independent_branches_of_one_provider_join() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (1,))
    model = op.model(a=op.Exp(op.Neg(x)), b=op.Exp(op.Abs(x)))
    parts = partition(model.graph, lambda node: int(node.op_type == "Exp"))
    assert [len(part.nodes) for part in parts] == [2, 2]
