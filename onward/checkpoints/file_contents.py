"""The contents of a training checkpoint: parameters, user properties and optimizer state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints import tensor_files
from onward.errors import CheckpointCorrupt, CheckpointError

Array = np.ndarray[Any, Any]
Property = int | float | str
StrPath = str | os.PathLike[str]

_OPTIMIZER = "optimizer/"  # prefix of the names of optimizer state


@dataclass
class StoredParameter:
    """A parameter; in a nominal checkpoint it has no data."""

    requires_grad: bool
    data: Array | None


@dataclass
class StoredOptimizer:
    """The state of an optimizer; slots by slot name, then by parameter."""

    step: int
    initial_learning_rate: float
    learning_rate: float | None = None  # None: not in the file
    slots: dict[str, dict[str, Array]] = field(default_factory=dict)


@dataclass
class Contents:
    """Parameters in order, the user's properties, and the optimizer state if it was saved."""

    parameters: dict[str, StoredParameter]
    properties: dict[str, Property] = field(default_factory=dict)
    optimizer: StoredOptimizer | None = None
    model: str | None = None  # the fingerprint of the model


def read(path: StrPath) -> Contents:
    """Read a checkpoint in Onward's format and verify every byte."""
    found = tensor_files.read(path)
    try:
        return _contents(found.tensors, found.properties)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{os.fspath(path)} is a checkpoint, but not of training artifacts: {error!r}\n"
            "read it with the program that wrote it"
        ) from error


def write(path: StrPath, contents: Contents) -> None:
    """Write a checkpoint atomically, in place of a file of that name."""
    tensors = {
        name: stored.data for name, stored in contents.parameters.items() if stored.data is not None
    }
    properties: dict[str, Any] = {
        "parameters": {
            name: {"requires_grad": stored.requires_grad}
            for name, stored in contents.parameters.items()
        },
        "user": dict(contents.properties),
        "optimizer": None,
        "nominal": len(tensors) < len(contents.parameters),
        "model": contents.model,
    }
    if contents.optimizer is not None:
        known = contents.optimizer
        properties["optimizer"] = {
            "learning_rate": known.learning_rate,
            "initial_learning_rate": known.initial_learning_rate,
            "step": known.step,
        }
        for slot, arrays in known.slots.items():
            tensors |= {f"{_OPTIMIZER}{slot}/{name}": data for name, data in arrays.items()}
    tensor_files.write(Path(path), tensors, properties)


def _contents(tensors: dict[str, Array], properties: Mapping[str, Any]) -> Contents:
    parameters = {}
    for name, about in properties["parameters"].items():
        data = tensors.pop(name, None)
        if data is None and not properties["nominal"]:
            raise CheckpointCorrupt(
                f"parameter {name!r} has no data, but the file is not a nominal checkpoint "
                "(one of names without data)\ncopy the file again, or take an earlier one"
            )
        parameters[name] = StoredParameter(bool(about["requires_grad"]), data)
    optimizer = None
    if properties["optimizer"] is not None:
        about = properties["optimizer"]
        optimizer = StoredOptimizer(
            int(about["step"]), float(about["initial_learning_rate"]), float(about["learning_rate"])
        )
        for name in [name for name in tensors if name.startswith(_OPTIMIZER)]:
            slot, _, parameter = name.removeprefix(_OPTIMIZER).partition("/")
            optimizer.slots.setdefault(slot, {})[parameter] = tensors.pop(name)
    return Contents(parameters, dict(properties["user"]), optimizer, properties.get("model"))
