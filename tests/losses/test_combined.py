"""onward/losses/combined.py: totals, outputs that are losses, graphs of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F

import onward
from onward.errors import OptionError
from onward.graph.graph_ops import extend
from onward.losses.classification import CrossEntropy
from onward.losses.combined import Graph, Output, Total, build_with_parts
from onward.losses.regression import L1, MSE
from tests.losses.case import (
    STOCK,
    Case,
    check,
    echo,
    integers,
    normal,
    run,
    values_of,
    with_loss,
)

# -- totals ----------------------------------------------------------------------------------------

TWO = {
    "y": normal(4, 3),
    "y2": normal(4, 2),
    "labels": integers(3, 4),
    "target": normal(4, 2, seed=1),
}
BOTH = Total({"digit": CrossEntropy(output="y"), "size": (MSE(output="y2"), 0.25)})


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_total_is_the_weighted_sum(dynamic: bool) -> None:
    def torch_loss(y: Any, y2: Any, labels: Any, target: Any) -> Any:
        return F.cross_entropy(y, labels) + 0.25 * F.mse_loss(y2, target)

    check(Case("total", BOTH, TWO, torch_loss), np.float32, 1e-5, dynamic=dynamic)


def test_the_parts_can_be_reported() -> None:
    outputs = {name: TWO[name].astype(np.float32) for name in ("y", "y2")}
    model = echo(outputs)
    total, parts = build_with_parts(BOTH, extend(model), values_of(model))
    assert list(parts) == ["digit", "size"]
    for name, value in {"loss": total, **parts}.items():
        value.name = name
        model.graph.outputs.append(value)
    feeds = {"y_in": outputs["y"], "y2_in": outputs["y2"], "labels": TWO["labels"]}
    found = run(model, feeds | {"target": TWO["target"].astype(np.float32)}, STOCK)
    wanted = F.mse_loss(torch.tensor(TWO["y2"]), torch.tensor(TWO["target"]))
    np.testing.assert_allclose(found["size"], wanted, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], found["digit"] + 0.25 * found["size"], rtol=1e-6)


def test_a_part_is_a_separate_value() -> None:
    """A model's own output is not renamed by whoever reports it, nor one part by another."""
    model = echo({"y": np.array(1.0)})
    _, parts = build_with_parts(
        Total({"a": Output(), "b": Output()}), extend(model), values_of(model)
    )
    made = {id(value) for value in (*parts.values(), *model.graph.outputs)}
    assert len(made) == 3


def test_any_other_loss_has_no_parts() -> None:
    model = echo({"y": normal(2)})
    loss, parts = build_with_parts(MSE(), extend(model), values_of(model))
    assert parts == {} and loss.shape == ir.Shape([])


def test_a_list_is_named_by_its_classes() -> None:
    total = Total([MSE(), (L1(), 2), MSE(output="y2", target="other")])
    assert total.parts == {
        "MSE": (MSE(), 1.0),
        "L1": (L1(), 2.0),
        "MSE_2": (MSE(output="y2", target="other"), 1.0),
    }


def test_losses_with_one_target_share_its_input() -> None:
    def torch_loss(y: Any, target: Any) -> Any:
        return F.mse_loss(y, target) + 0.1 * F.l1_loss(y, target)

    feeds = {"y": normal(4, 3), "target": normal(4, 3, seed=1)}
    check(Case("shared", Total([MSE(), (L1(), 0.1)]), feeds, torch_loss), np.float32, 1e-5)
    message = r"MSE compares with 'target', which should have shape \[5\] and has \[4, 3\]"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(4, 3), "y2": normal(5)}), Total([MSE(), MSE(output="y2")]))


def test_totals_may_be_parts_of_totals() -> None:
    nested = Total({"all": (Total([MSE(), L1()]), 0.5)})

    def torch_loss(y: Any, target: Any) -> Any:
        return 0.5 * (F.mse_loss(y, target) + F.l1_loss(y, target))

    feeds = {"y": normal(4, 3), "target": normal(4, 3, seed=1)}
    check(Case("nested", nested, feeds, torch_loss), np.float32, 1e-5)


def test_parts_of_several_types_are_added_in_the_widest() -> None:
    outputs = {"y": normal(2).astype(np.float32), "y2": normal(3)}
    loss = Total([MSE(), MSE(output="y2", target="t2")])
    dtype = with_loss(echo(outputs), loss).graph.outputs[-1].dtype
    assert dtype == ir.DataType.DOUBLE


def test_parts_are_single_numbers() -> None:
    message = (
        r"part 'L1' of Total has shape \[4, 3\]: parts must be single numbers\n"
        "give it the reduction 'mean' or 'sum'"
    )
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(4, 3)}), Total([L1(reduction="none")]))


def test_an_empty_total_is_refused() -> None:
    with pytest.raises(OptionError, match="Total needs at least one loss, and none was given"):
        Total({})


@pytest.mark.parametrize("parts", [None, 3, MSE(), "mse"], ids=str)
def test_a_total_of_other_objects_is_refused(parts: Any) -> None:
    message = (
        "Total takes a dict of losses by name, or a list of losses, not .*\nfor example: Total"
    )
    with pytest.raises(OptionError, match=message):
        Total(parts)


@pytest.mark.parametrize("name", [3, "", None])
def test_a_part_without_a_name_is_refused(name: Any) -> None:
    message = f"a part of Total has the name {name!r}: a name must be a non-empty str"
    with pytest.raises(OptionError, match=message):
        Total({name: MSE()})


@pytest.mark.parametrize("loss", [3, "mse", MSE, F.mse_loss], ids=lambda loss: type(loss).__name__)
def test_an_object_that_is_not_a_loss_is_refused(loss: Any) -> None:
    model = echo({"y": normal(2)})
    message = r"a loss has a method build\(op, values\), and .* has none\ngive one of onward.losses"
    with pytest.raises(OptionError, match=message):
        build_with_parts(loss, extend(model), values_of(model))


@pytest.mark.parametrize("part", [MSE, 3, (MSE(), 1.0, 2.0), ("mse", 1.0)], ids=str)
def test_a_part_that_is_not_a_loss_is_refused(part: Any) -> None:
    message = r"part 'a' of Total must be a loss, or a pair \(loss, weight\), not .*\nfor example"
    with pytest.raises(OptionError, match=message):
        Total({"a": part})


@pytest.mark.parametrize("weight", ["1", float("nan"), None])
def test_a_weight_that_is_not_a_number_is_refused(weight: Any) -> None:
    with pytest.raises(
        OptionError, match=r"weight of part 'a' of Total must be a finite number, not "
    ):
        Total({"a": (MSE(), weight)})


# -- an output that is the loss already ------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_an_output_can_be_the_loss(shape: tuple[int, ...]) -> None:
    case = Case("output", Output("y"), {"y": normal(*shape)}, lambda y: y.reshape(()))
    check(case, np.float32, 1e-6)


def test_without_a_name_the_first_output_is_the_loss() -> None:
    model = echo({"y": np.array(1.0), "y2": normal(3)})
    assert Output().build(extend(model), values_of(model)) is model.graph.outputs[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_output_of_many_elements_cannot_be_the_loss(dynamic: bool) -> None:
    size = "n3" if dynamic else "3"
    message = (
        rf"Output returns 'y' of shape \[{size}\]: a loss must be one number\n"
        "reduce it to its mean or its sum first"
    )
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(3)}, dynamic=dynamic), Output("y"))


def test_an_output_of_integers_cannot_be_the_loss() -> None:
    with pytest.raises(OptionError, match="Output reads 'y', which is INT64: a loss needs float"):
        with_loss(echo({"y": np.array(1)}), Output("y"))


def test_an_output_name_must_be_a_string() -> None:
    with pytest.raises(OptionError, match=r"Output.name must be a name, not 3"):
        Output(3)  # type: ignore[arg-type]


def test_a_missing_output_cannot_be_the_loss() -> None:
    with pytest.raises(OptionError, match="Output reads 'los', which the model does not have"):
        with_loss(echo({"y": np.array(1.0)}), Output("los"))


# -- a graph of one's own --------------------------------------------------------------------------


def test_a_function_can_be_the_loss() -> None:
    def log_cosh(op: Any, values: Any) -> Any:
        y = values["y"]
        t = op.input("target", y.dtype, y.shape)
        return op.ReduceMean(op.Log(op.Cosh(op.Sub(y, t))), keepdims=0)

    feeds = {"y": normal(4, 3), "target": normal(4, 3, seed=1)}
    case = Case(
        "log cosh", Graph(log_cosh), feeds, lambda y, target: (y - target).cosh().log().mean()
    )
    check(case, np.float32, 1e-5, dynamic=True)


def test_a_loss_function_must_return_a_value() -> None:
    message = "the function of Graph returned float, not a value\nreturn what op's last operator"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(3)}), Graph(lambda op, values: 1.0))  # type: ignore[arg-type, return-value]
    with pytest.raises(
        OptionError, match=r"Graph returns 'y' of shape \[3\]: a loss must be one number"
    ):
        with_loss(echo({"y": normal(3)}), Graph(lambda op, values: values["y"]))


def test_a_model_can_be_the_loss() -> None:
    op = onward.OpBuilder()
    y = op.input("y", "float32", ("n", 3))
    wanted = op.input("wanted", "float32", ("n", 3))
    model = op.model(loss=op.ReduceMean(op.Abs(op.Sub(y, wanted)), keepdims=0), other=op.Neg(y))
    feeds = {"y": normal(4, 3), "wanted": normal(4, 3, seed=1)}
    case = Case("model", Graph(model), feeds, lambda y, wanted: F.l1_loss(y, wanted))
    check(case, np.float32, 1e-5)
    check(case, np.float32, 1e-5, dynamic=True)
