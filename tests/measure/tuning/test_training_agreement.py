"""Agreement of engines: rounding is tolerated, other losses, gradients and updates are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onward.errors import ProviderError
from onward.measure.tuning.training_agreement import TOLERANCES, StepResults, check_agreement

F32 = TOLERANCES["f32"]


def results(**other: Any) -> StepResults:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(30, 10)).astype(np.float32)
    noise = np.full(10, 1e-9, np.float32)
    made = StepResults(
        losses=np.array([2.0, 1.5, 1.25], np.float32),
        gradients={"w": w, "b": noise},
        changes={"w": -0.001 * np.sign(w), "b": np.full(10, 0.001, np.float32)},
        statistics={"mean": np.arange(4, dtype=np.float32)},
    )
    return replace(made, **other)


def changed(group: dict[str, Any], name: str, array: Any) -> dict[str, Any]:
    return {**group, name: array}


def test_a_list_keeps_all_arrays() -> None:
    one = results()
    again = StepResults.from_list(one.to_list(), ["w", "b"], ["mean"])
    assert again.changes["b"] is one.changes["b"] and again.statistics == one.statistics
    check_agreement(again, one, F32)


def test_rounding_is_tolerated() -> None:
    one = results()
    losses = one.losses * np.float32(1 + 1e-5)
    gradients = {name: g * np.float32(1 + 1e-5) for name, g in one.gradients.items()}
    check_agreement(results(losses=losses, gradients=gradients), one, F32)


def test_a_parameter_whose_gradient_is_rounding_may_move_either_way() -> None:
    one = results()
    other = results(
        gradients=changed(one.gradients, "b", -one.gradients["b"]),
        changes=changed(one.changes, "b", -one.changes["b"]),
    )
    check_agreement(other, one, F32)


def test_losses_that_are_not_finite_are_equal() -> None:
    losses = np.array([1.0, np.nan, np.inf], np.float32)
    check_agreement(results(losses=losses), results(losses=losses.copy()), F32)
    with pytest.raises(ProviderError, match="the loss differs from onnxruntime's"):
        check_agreement(results(), results(losses=losses), F32)


W = results().gradients["w"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"losses": np.array([2.0, 1.5, 1.2505], np.float32)}, "the loss differs"),
        ({"gradients": changed(results().gradients, "w", W * 1.01)}, "the gradient of 'w' differs"),
        ({"gradients": changed(results().gradients, "w", W[:2])}, r"shape \(2, 10\), onnxruntime"),
        ({"changes": changed(results().changes, "w", W * 0)}, "the change of 'w' differs"),
        ({"changes": changed(results().changes, "w", W * np.nan)}, "the change of 'w' differs"),
        ({"statistics": {"mean": np.ones(4, np.float32)}}, "the statistic 'mean' differs"),
    ],
)
def test_what_differs_is_named(other: Any, message: str) -> None:
    with pytest.raises(ProviderError, match=message):
        check_agreement(results(**other), results(), F32)


def test_less_precision_tolerates_more() -> None:
    one, rough = results(), results(losses=results().losses * np.float32(1.01))
    check_agreement(rough, one, TOLERANCES["bf16"])
