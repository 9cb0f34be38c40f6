"""For a checkpoint of another model, the first tensor that differs is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.checkpoints.model_match import check_match, fingerprint
from onward.checkpoints.tensor_files import TensorMetadata
from onward.errors import CheckpointMismatch

MODEL = {"w": np.zeros((2, 3), np.float32), "b": np.zeros((), np.float32)}


def test_arrays_and_specs_are_compared() -> None:
    check_match({"b": TensorMetadata("float32", ()), "w": TensorMetadata("float32", (2, 3))}, MODEL)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"w": MODEL["w"]}, "it has no tensor 'b', and the model has float32[]"),
        ({**MODEL, "w": np.zeros((3, 2), np.float32)},
         "tensor 'w' is float32[3, 2], and the model has float32[2, 3]"),
        ({**MODEL, "w": np.zeros((2, 3))},
         "tensor 'w' is float64[2, 3], and the model has float32[2, 3]"),
        ({**MODEL, "v": MODEL["w"]}, "it has the tensor 'v', and the model does not"),
    ],
)  # fmt: skip
def test_first_difference_is_named(found: Any, text: str) -> None:
    with pytest.raises(CheckpointMismatch) as caught:
        check_match(found, MODEL, "step 3")
    assert str(caught.value) == (
        f"step 3 is of another model: {text}\n"
        "load it into the model that it was saved from, or start again in another folder"
    )


def test_fingerprint_ignores_order() -> None:
    known = fingerprint({"w": (2, 3), "b": (3,)})
    assert known == fingerprint({"b": (3,), "w": (2, 3)}) and len(known) == 64
    others = [{"w": (3, 2), "b": (3,)}, {"v": (2, 3), "b": (3,)}, {"w": (2, 3)}]
    assert known not in map(fingerprint, others)
