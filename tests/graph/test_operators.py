"""The table of operator traits."""

from __future__ import annotations

import numpy as np
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir
import pytest
from onnx import helper

from onward.graph import operators
from onward.graph.operators import is_random, is_random_contrib

TRAITS = {name: trait for name, trait in vars(operators).items() if isinstance(trait, frozenset)}


@pytest.mark.parametrize(
    "names", [trait for name, trait in TRAITS.items() if "CONTRIB" not in name]
)
def test_every_name_is_an_operator_of_onnx(names: frozenset[str]) -> None:
    assert all(onnx.defs.has(name) for name in names)


def test_broadcasting_operators_take_two_inputs() -> None:
    schemas = [onnx.defs.get_schema(name) for name in operators.BROADCASTING]
    assert {(schema.min_input, schema.max_input) for schema in schemas} == {(2, 2)}


def first_shapes(name: str) -> tuple[ir.Shape | None, ir.Shape | None]:
    """The shapes of a node's first input and output, inferred for an input of shape (4, 9)."""
    schema = onnx.defs.get_schema(name)
    attributes = {"SpaceToDepth": {"blocksize": 3}, "LpNormalization": {}, "Cast": {"to": 1}}
    x = helper.make_tensor_value_info("x", 1, [4, 9])
    rest = [f"x{i}" for i in range(1, schema.min_input)]
    made = helper.make_node(name, ["x", *rest], ["y"], **attributes.get(name, {}))
    graph = helper.make_graph([made], "g", [x], [helper.make_empty_tensor_value_info("y")])
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph))
    return ir.Shape([4, 9]), ir.from_proto(model).graph.outputs[0].shape


@pytest.mark.parametrize("name", sorted(operators.SAME_SHAPE))
def test_same_shape_agrees_with_onnx(name: str) -> None:
    x, y = first_shapes(name)
    assert y is None or x == y


def mode(value: bool | None) -> ir.Value:
    """A training mode that is a constant, or fed."""
    tensor = None if value is None else ir.tensor(np.array(value))
    return ir.val("mode", ir.DataType.BOOL, [], const_value=tensor)


def node(name: str, *inputs: ir.Value | None, domain: str = "") -> ir.Node:
    return ir.node(name, [ir.val("x"), *inputs], domain=domain)


def test_operators_that_draw_are_random() -> None:
    assert all(is_random(node(name)) for name in operators.RANDOM)
    assert not is_random(node("Bernoulli", domain="mine"))
    assert not is_random(node("Relu"))


def test_dropout_is_random_unless_its_mode_is_known_to_be_false() -> None:
    assert not is_random(node("Dropout"))
    assert not is_random(node("Dropout", None, mode(False)))
    assert is_random(node("Dropout", None, mode(True)))
    assert is_random(node("Dropout", None, mode(None)))


def test_an_overridable_mode_does_not_turn_dropout_off() -> None:
    overridable = mode(False)
    dropout = node("Dropout", None, overridable)
    ir.Graph([overridable], dropout.outputs, nodes=[dropout], initializers=[overridable])
    assert is_random(dropout)


def test_training_modes_of_contrib_operators() -> None:
    others = [ir.val("bias"), None, None]
    drops = node("BiasDropout", *others, mode(True), domain="com.microsoft")
    keeps = node("BiasDropout", *others, mode(False), domain="com.microsoft")
    assert is_random_contrib(drops) and not is_random_contrib(keeps)
    assert is_random_contrib(node("Sampling", domain="com.microsoft"))
    assert not is_random_contrib(node("Sampling"))
