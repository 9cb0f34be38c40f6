"""The program that is planned: the loss that fits a model, optimizers, precision."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onward.distributed.planner.planned_program import choose_planned_loss, open_planned_program
from onward.errors import OptionError, UnsupportedModel
from onward.graph.builder import OpBuilder
from onward.losses.combined import Output
from onward.runner.config import make_config
from onward.runner.plan.guess_loss import MSE, BCEWithLogits, CrossEntropy


def network(*shape: int, tokens: bool = False, ending: str = "") -> ir.Model:
    """A product whose output is (batch, *shape)."""
    op = OpBuilder(18)
    size = shape[-1] if shape else 1
    w = op.initializer("w", np.ones((8, size), np.float32))
    if tokens:
        table = op.initializer("table", np.ones((30, 8), np.float32))
        x = op.Gather(table, op.input("tokens", "int64", ("batch", *shape[:-1])))
    else:
        x = op.input("x", "float32", ("batch", *shape[:-1], 8))
    y = op.MatMul(x, w)
    return op.model(y=op.node(ending, [y], {}) if ending else y)


def loss_of(model: ir.Model, name: str = "auto") -> object:
    return choose_planned_loss(model, make_config(loss=name))


def test_loss_that_fits_the_output() -> None:
    assert isinstance(loss_of(network(5)), CrossEntropy)
    assert isinstance(loss_of(network(1)), MSE)
    assert isinstance(loss_of(network(7, 5)), MSE)
    of_tokens = loss_of(network(7, 30, tokens=True))
    assert isinstance(of_tokens, CrossEntropy) and of_tokens.axis == 2
    before_softmax = loss_of(network(5, ending="Softmax"))
    assert isinstance(before_softmax, CrossEntropy) and before_softmax.output != "y"


def test_a_single_number_is_the_models_own_loss() -> None:
    op = OpBuilder(18)
    w = op.initializer("w", np.ones((8, 3), np.float32))
    x = op.input("x", "float32", ("batch", 8))
    model = op.model(loss=op.ReduceMean(op.MatMul(x, w), keepdims=0))
    assert isinstance(loss_of(model), Output)
    assert open_planned_program(model).layout.targets == ()


def test_a_loss_can_be_named() -> None:
    assert isinstance(loss_of(network(5), "bce_with_logits"), BCEWithLogits)
    assert isinstance(loss_of(network(5), "mse"), MSE)
    named = loss_of(network(7, 5), "cross_entropy")
    assert isinstance(named, CrossEntropy) and named.axis == 2


@pytest.mark.parametrize("shape", [(5,), (1,), (7, 5), (3, 4, 5)])
def test_programs_of_many_shapes_are_compiled(shape: tuple[int, ...]) -> None:
    assert [each.name for each in open_planned_program(network(*shape)).layout.parameters] == ["w"]


def test_slots_of_the_optimizer() -> None:
    def slots(name: str) -> int:
        return len(open_planned_program(network(5), optimizer=name).layout.updates[0].slots)

    assert (slots("adamw"), slots("lion"), slots("sgd")) == (2, 1, 0)


def test_parameters_stay_float32_in_16_bits() -> None:
    program = open_planned_program(network(5), precision="bf16")
    assert program.layout.updates[0].dtype == "float32"
    assert any(value.dtype == ir.DataType.BFLOAT16 for node in program.train.graph for value in node.outputs)  # fmt: skip  # noqa: E501


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(OptionError, match=r"optimizer cannot be 'adamx'\ndid you mean 'adam'"):
        open_planned_program(network(5), optimizer="adamx")
    with pytest.raises(OptionError, match=r"there is no precision 'bf17'\ndid you mean 'bf16'"):
        open_planned_program(network(5), precision="bf17")
    op = OpBuilder(18)
    labels = op.model(y=op.ArgMax(op.input("x", "float32", ("batch", 8))))
    with pytest.raises(UnsupportedModel, match="no output of floats to train"):
        open_planned_program(labels)
