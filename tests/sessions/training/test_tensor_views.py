"""State: tensors by name, and new values that all fit or are not set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from onward.errors import OptionError
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import mlp, weights

ONES = np.ones((8, 16), np.float32)


def session() -> TrainingSession:
    return TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1))


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (["a"] * 16, r"parameter 'b1' is of float32, not of <U1\ngive an array that can be cast"),
        (np.ones(16) * 1j, r"parameter 'b1' is of float32, not of complex128\ngive"),
        (
            [None] * 16,
            r"'b1' is not an array of numbers: it holds objects, such as NoneType\n",
        ),
        ([[1.0], [2.0, 3.0]], r"parameter 'b1' is not an array: .*\ngive a numpy array$"),
        (np.ones(3), r"parameter 'b1' has shape \(16,\), not \(3,\)\ngive an array of that shape"),
    ],
)
def test_parameters_are_set_together_or_not_at_all(bias: Any, message: str) -> None:
    one = session()
    with pytest.raises(OptionError, match=message):
        one.set_parameters({"w1": ONES, "b1": bias})
    np.testing.assert_array_equal(one.parameters["w1"], weights()["w1"])


def test_unknown_names_and_other_types_are_refused() -> None:
    law = r"parameters must be a dictionary of arrays, not list\ngive {name: \.\.\.}"
    with pytest.raises(OptionError, match=law):
        session().set_parameters([ONES])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"there is no parameter 3\nthere are 'w1'"):
        session().set_parameters({3: ONES})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "given",
    [
        ONES.astype(np.float64),
        ONES.astype(np.int32),
        ONES.astype(ml_dtypes.bfloat16),
        ONES.tolist(),
        torch.ones(8, 16, requires_grad=True),
    ],
    ids=["float64", "int32", "bfloat16", "lists", "torch"],
)
def test_arrays_are_cast_where_possible(given: Any) -> None:
    one = session()
    one.set_parameters({"w1": given})
    np.testing.assert_array_equal(one.parameters["w1"], ONES)
