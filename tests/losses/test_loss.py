"""onward/losses/loss.py: what every loss shares, and what it says of a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from onward.errors import OptionError
from onward.graph.graph_ops import extend
from onward.losses.classification import KL, BCEWithLogits, CrossEntropy
from onward.losses.ctc import CTC
from onward.losses.distance import Cosine, Triplet
from onward.losses.loss import Loss
from onward.losses.regression import MSE, Huber
from tests.losses.case import (
    Case,
    check,
    echo,
    inputs_of,
    integers,
    measured,
    normal,
    values_of,
    with_loss,
)


def test_the_first_output_is_read_if_none_is_named() -> None:
    outputs = {"y": normal(2, 3), "y2": normal(4)}
    assert inputs_of(with_loss(echo(outputs), MSE()))["target"] == ("DOUBLE", [2, 3])
    assert inputs_of(with_loss(echo(outputs), MSE(output="y2")))["target"] == ("DOUBLE", [4])


def test_a_missing_output_is_refused() -> None:
    message = r"MSE reads 'yy', which the model does not have\ndid you mean 'y'\?$"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(2)}), MSE(output="yy"))


def test_errors_list_a_few_of_many_values() -> None:
    outputs = {f"y{i}": normal(1) for i in range(9)}
    with pytest.raises(OptionError, match=r"its values are 'y0', .*'y7', \.\.\.$"):
        with_loss(echo(outputs), MSE(output="z"))


def test_a_model_without_values_is_refused() -> None:
    op = extend(echo({"y": normal(2)}))
    message = "MSE reads the first output, which the model does not have\nits values are none"
    with pytest.raises(OptionError, match=message):
        MSE().build(op, {})


def test_an_output_of_integers_is_refused() -> None:
    message = (
        "MSE reads 'y', which is INT64: a loss needs float values\nname another output, or cast"
    )
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": integers(5, 3)}), MSE())


def test_an_output_of_unknown_rank_is_refused() -> None:
    model = echo({"y": normal(2)})
    model.graph.outputs[0].shape = None
    message = "MSE reads 'y', whose rank is not known\ngive the model's inputs"
    with pytest.raises(OptionError, match=message):
        with_loss(model, MSE())
    model.graph.outputs[0].type = None
    with pytest.raises(OptionError, match="which is of no known type"):
        with_loss(model, MSE())


def test_a_target_of_another_shape_is_refused() -> None:
    model = echo({"y": normal(2, 3), "y2": normal(2, 1)})
    message = (
        r"MSE compares with 'y2', which should have shape \[2, 3\] and has \[2, 1\]"
        r"\ngive this loss another target: target='...'"
    )
    with pytest.raises(OptionError, match=message):
        with_loss(model, MSE(target="y2"))


def test_unnamed_sizes_are_accepted() -> None:
    model = echo({"y": normal(2, 3)}, dynamic=True)
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape([None, 3])
    model = with_loss(model, MSE())
    assert inputs_of(model)["target"] == ("DOUBLE", [None, 3])
    case = Case(
        "unnamed",
        MSE(),
        {"y": normal(2, 3), "target": normal(2, 3, seed=1)},
        lambda y, target: ((y - target) ** 2).mean(),
    )
    check(case, np.float32, 1e-5, dynamic=True)


def test_a_target_of_another_type_is_cast() -> None:
    feeds = {"y": normal(2, 3).astype(np.float32), "y2": integers(9, 2, 3)}
    model = with_loss(echo(feeds), MSE(target="y2"))
    assert [node.op_type for node in model.graph][2:] == ["Cast", "Sub", "Mul", "ReduceMean"]


def test_a_model_of_one_output_gets_one_more_input_and_few_nodes() -> None:
    model = echo({"y": normal(2, 3)})
    before = len(values_of(model))
    model = with_loss(model, MSE())
    assert len(values_of(model)) == before + 4  # target, Sub, Mul, ReduceMean


def test_an_old_opset_is_refused() -> None:
    message = (
        "MSE needs opset 18 or newer, the model has 17\nupgrade it first: onward.passes.upgrade"
    )
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(2)}, opset=17), MSE())


WIDE = {"y": normal(6, 4, 3), "y2": normal(6, 4, 3, seed=1), "y3": normal(6, 4, 3, seed=2)}
LOSSES: dict[str, tuple[Loss, dict[str, Any]]] = {
    "hard": (CrossEntropy(label_smoothing=0.1, ignore_index=1), {"labels": integers(4, 6, 3)}),
    "soft": (CrossEntropy(soft_labels=True), {"labels": abs(normal(6, 4, 3))}),
    "squares": (MSE(target="y2"), {}),
    "huber": (Huber(target="y2"), {}),
    "binary": (BCEWithLogits(pos_weight=2.0), {"target": abs(normal(6, 4, 3))}),
    "kl": (KL(reduction="batchmean"), {"target": abs(normal(6, 4, 3))}),
    "cosine": (Cosine(target="y2", labels="same"), {"same": np.ones((6, 4), np.int64)}),
    "triplet": (Triplet(positive="y2", negative="y3", p=3.0, swap=True), {}),
    "ctc": (CTC(input_lengths=None, target_lengths=None), {"labels": integers(3, 4, 2, low=1)}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_opset_gives_the_same_loss(name: str) -> None:
    loss, targets = LOSSES[name]
    seen = {"y2", "y3"} & set(vars(loss).values())
    outputs = {key: feed for key, feed in WIDE.items() if key == "y" or key in seen}
    case = Case(name, loss, outputs | targets, torch.nn.functional.l1_loss)
    first, slopes = measured(case, np.float32, opset=18)
    for opset in (21, 26, 28):
        again, others = measured(case, np.float32, opset=opset)
        np.testing.assert_allclose(again, first, rtol=1e-6)
        for key, slope in slopes.items():
            np.testing.assert_allclose(others[key], slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "field", "given", "law"),
    [
        (CrossEntropy, "output", 3, "a name"),
        (CrossEntropy, "target", None, "a name"),
        (MSE, "target", "", "a name"),
        (CrossEntropy, "ignore_index", 1.5, "a whole number"),
        (CrossEntropy, "axis", "last", "a whole number"),
        (CrossEntropy, "label_smoothing", "0.1", "a number"),
        (CrossEntropy, "label_smoothing", True, "a number"),
        (CrossEntropy, "soft_labels", "no", "True or False"),
        (Huber, "delta", None, "a number"),
        (Triplet, "margin", None, "a number"),
        (Triplet, "swap", 1, "True or False"),
        (CTC, "blank", "-", "a whole number"),
        (Cosine, "labels", 3, "a name"),
        (KL, "log_target", None, "True or False"),
    ],
)
def test_a_field_of_another_type_is_refused(kind: Any, field: str, given: Any, law: str) -> None:
    message = rf"^{kind.__name__}\.{field} must be {law}.*, not {given!r}$"
    with pytest.raises(OptionError, match=message):
        kind(**{field: given})


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"label_smoothing": np.float32(0.5), "axis": np.int64(1), "ignore_index": np.int8(-1)}
    loss = CrossEntropy(**given, soft_labels=np.False_)  # type: ignore[arg-type]
    assert repr(loss) == repr(CrossEntropy(label_smoothing=0.5, axis=1, ignore_index=-1))
    with_loss(echo({"y": normal(2, 3)}), loss)
