"""onward/losses/ctc.py against torch, through the LogSoftmax that comes before it.

torch's gradient of the log probabilities themselves is the one that holds behind a LogSoftmax;
ours is the plain one. Behind a LogSoftmax they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch.nn.functional as F

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps
from onward.losses.ctc import CTC
from onward.losses.loss import Values
from tests.losses.case import (
    DOUBLE,
    Array,
    Case,
    check,
    echo,
    expected,
    inputs_of,
    measured,
    normal,
    with_loss,
)

TIME, BATCH, CLASSES = 9, 4, 5
LABELS = np.array([[1, 2, 3, 4], [2, 2, 2, 1], [3, 1, -1, -1], [4, 4, 99, 0]])
FULL = np.full(BATCH, TIME)
LENGTHS: dict[str, tuple[Array, Array]] = {  # of the time, of the labels
    "all of it": (FULL, np.array([4, 4, 2, 2])),
    "shorter": (np.array([9, 8, 2, 5]), np.array([4, 4, 2, 2])),
    "without labels": (np.array([9, 0, 4, 1]), np.array([4, 0, 0, 1])),
    "some impossible": (np.array([9, 5, 1, 0]), np.array([4, 4, 2, 2])),
}


@dataclass(frozen=True)
class Softened:
    """A loss of log softmax(y)."""

    loss: CTC

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        return self.loss.build(op, {"log_probs": op.LogSoftmax(values["y"], axis=2)})


def _case(name: str, reduction: str = "mean", scale: float = 1.0, **settings: Any) -> Case:
    inputs, targets = LENGTHS[name]
    feeds = {"y": scale * normal(TIME, BATCH, CLASSES), "labels": LABELS}
    feeds |= {"input_lengths": inputs, "target_lengths": targets}

    def torch_loss(y: Any, labels: Any, input_lengths: Any, target_lengths: Any) -> Any:
        rest = (labels, input_lengths, target_lengths)
        return F.ctc_loss(F.log_softmax(y, 2), *rest, reduction=reduction, **settings)

    loss = Softened(CTC(reduction=reduction, **settings))
    return Case(f"{name}, {reduction}, {settings}", loss, feeds, torch_loss)


CASES = [
    *(_case("shorter", reduction) for reduction in ("mean", "sum", "none")),
    *(_case(name) for name in ("all of it", "without labels")),
    *(_case("some impossible", r, zero_infinity=True) for r in ("mean", "sum", "none")),
    _case("all of it", scale=20.0),
]


@pytest.mark.sampled("case.loss.loss.reduction", "case.loss.loss.zero_infinity")
@pytest.mark.sampled("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ctc_matches_torch_on_stock_onnxruntime(case: Case, dynamic: bool) -> None:
    check(case, np.float32, 1e-5, dynamic=dynamic)


@pytest.mark.sampled("case.loss.loss.zero_infinity")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ctc_matches_torch_in_float64(case: Case) -> None:
    check(case, np.float64, 1e-10, dynamic=True, providers=DOUBLE)


def test_any_class_can_be_the_blank() -> None:
    known = _case("shorter", blank=4)
    labels = np.array([[1, 2, 3, 0], [2, 2, 2, 1], [3, 1, -1, -1], [0, 0, 99, 4]])
    feeds = {**known.feeds, "labels": labels}
    check(Case("blank", known.loss, feeds, known.torch), np.float32, 1e-5)


def test_without_lengths_all_steps_count() -> None:
    known = _case("all of it")
    labels = np.array([[1, 2, 3], [2, 2, 1], [3, 1, 3], [4, 1, 4]])
    loss = Softened(CTC(input_lengths=None, target_lengths=None))

    def torch_loss(y: Any, labels: Any) -> Any:
        lengths = np.full(BATCH, TIME).tolist(), np.full(BATCH, 3).tolist()
        return F.ctc_loss(F.log_softmax(y, 2), labels, *lengths)

    case = Case("whole", loss, {"y": known.feeds["y"], "labels": labels}, torch_loss)
    check(case, np.float32, 1e-5)
    check(case, np.float32, 1e-5, dynamic=True)


@pytest.mark.parametrize("longest", [0, 1])
def test_rows_of_no_label_or_one_label(longest: int) -> None:
    known = _case("all of it")
    feeds = {**known.feeds, "labels": LABELS[:, :longest], "target_lengths": np.full(4, longest)}
    check(Case("short", known.loss, feeds, known.torch), np.float32, 1e-5, dynamic=True)


def test_labels_that_do_not_fit_cost_infinity_and_spoil_no_other_row() -> None:
    case = _case("some impossible", "none")
    loss, gradients = measured(case, np.float32)
    wanted, slopes = expected(case, np.float32)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert np.isinf(loss).tolist() == [False, True, True, True]
    np.testing.assert_allclose(gradients["y"][:, 0], slopes["y"][:, 0], atol=1e-5)
    assert np.isfinite(gradients["y"]).all()


def test_probabilities_of_zero_give_no_nan() -> None:
    """log 0 is minus infinity in the model's own output."""
    rows = np.log(np.eye(3, dtype=np.float32)[[0, 1, 2, 1]] + 1e-3)[:, None]
    rows[:, :, 0] = -np.inf
    loss = CTC(input_lengths=None, target_lengths=None, zero_infinity=True)
    feeds = {"y": np.concatenate([rows, rows], 1), "labels": np.array([[1, 2], [1, 1]])}
    found, gradients = measured(Case("zero", loss, feeds, F.ctc_loss), np.float32)
    assert np.isfinite(found) and found > 0
    assert np.isfinite(gradients["y"]).all()
    assert (gradients["y"][:, 1] == 0).all()  # 1 1 needs a blank in between, which cannot be


def test_extreme_scores_stay_finite() -> None:
    case = _case("all of it", "sum", scale=1e4)
    loss, gradients = measured(case, np.float32)
    wanted, _ = expected(case, np.float32)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert np.isfinite(gradients["y"]).all()


def test_sixteen_bits_are_widened() -> None:
    case = _case("shorter")
    feeds = {**case.feeds, "y": case.feeds["y"].astype(np.float16)}
    loss, gradients = measured(Case("half", case.loss, feeds, case.torch), np.float32)
    exact, _ = measured(case, np.float32)
    assert loss.dtype == np.float32 and gradients["y"].dtype == np.float16
    np.testing.assert_allclose(loss, exact, rtol=5e-3)


def test_labels_and_lengths_are_inputs() -> None:
    model = with_loss(echo({"y": normal(9, 4, 5)}), CTC())
    assert inputs_of(model) == {
        "y_in": ("DOUBLE", [9, 4, 5]),
        "labels": ("INT64", [4, "labels_length"]),
        "target_lengths": ("INT64", [4]),
        "input_lengths": ("INT64", [4]),
    }


def test_ctc_is_a_scan_over_time() -> None:
    model = with_loss(echo({"y": normal(9, 4, 5)}), CTC())
    assert sum(node.op_type == "Scan" for node in model.graph) == 1


def test_the_blank_is_a_class() -> None:
    with pytest.raises(OptionError, match=r"CTC\.blank must be a class, 0 to 5 - 1, not 5"):
        with_loss(echo({"y": normal(9, 4, 5)}), CTC(blank=5))


def test_log_probabilities_have_three_axes() -> None:
    message = r"CTC needs log probabilities of shape \(time, batch, classes\); 'y' has shape \[9, 5"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(9, 5)}), CTC())


def test_labels_are_integers() -> None:
    model = echo({"y": normal(9, 4, 5), "y_labels": normal(4, 2)})
    with pytest.raises(OptionError, match="CTC reads 'y_labels', which is DOUBLE: it needs integ"):
        with_loss(model, CTC(target="y_labels"))


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(OptionError, match=r"CTC.reduction must be one of .*, not 'avg'"):
        CTC(reduction="avg")
