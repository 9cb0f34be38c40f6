"""Check that a checkpoint fits a model: the same tensors, by name, type and shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from onward.errors import CheckpointMismatch


class TypedTensor(Protocol):
    """A numpy array, or a TensorSpec."""

    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def check_match(
    found: Mapping[str, TypedTensor],
    wanted: Mapping[str, TypedTensor],
    where: str = "the checkpoint",
) -> None:
    """Raise CheckpointMismatch for the first tensor that differs from the model's.

    >>> import numpy as np
    >>> check_match({"w": np.zeros(3)}, {"w": np.ones(3)})
    """
    for name, model in wanted.items():
        if name not in found:
            raise _mismatch(where, f"it has no tensor {name!r}, and the model has {_spec(model)}")
        if _spec(found[name]) != _spec(model):
            raise _mismatch(
                where, f"tensor {name!r} is {_spec(found[name])}, and the model has {_spec(model)}"
            )
    for name in found:
        if name not in wanted:
            raise _mismatch(where, f"it has the tensor {name!r}, and the model does not")


def fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A digest of the names and shapes of the trained parameters, which identifies a model.

    >>> fingerprint({"w": (2, 3), "b": (3,)}) == fingerprint({"b": (3,), "w": (2, 3)})
    True
    """
    listed = [[name, list(shape)] for name, shape in sorted(shapes.items())]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _mismatch(where: str, what: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{where} is of another model: {what}\n"
        "load it into the model that it was saved from, or start again in another folder"
    )


def _spec(tensor: TypedTensor) -> str:
    name = getattr(tensor.dtype, "name", tensor.dtype)
    return f"{name}[{', '.join(map(str, tensor.shape))}]"
