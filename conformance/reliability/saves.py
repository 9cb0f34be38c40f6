"""Helpers of the checkpoint rows: tensors that identify their save, and watched disks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.disk import RealDisk
from onward.checkpoints.tensor_files import Checkpoint

KEEP = 2
CHANGES = frozenset({"create", "write", "sync", "commit", "remove", "sync_folder"})


def tensors_of(number: int, size: int = 400) -> dict[str, Any]:
    """The tensors of one save, different for each save."""
    draw = np.random.default_rng(number)
    return {
        "encoder.weight": draw.normal(size=(size // 4, 4)).astype(np.float32),
        "encoder.bias": draw.normal(size=17).astype(np.float16),
        "head.weight": draw.normal(size=(3, size)).T,  # float64, not in order
        "mask": draw.random(size=33) > 0.5,
        "counts": draw.integers(-9, 9, size=(5, 1, 3)),
        "nothing": np.zeros((0, 4), np.float32),
        "step": np.array(number, np.int64),
    }


def metric_of(number: int) -> float:
    """A metric that is not monotonic."""
    return float(np.random.default_rng(number + 7).random())


def properties_of(number: int) -> dict[str, Any]:
    return {"number": number, "schedule": {"name": "cosine", "at": number / 3}}


def fault_of(found: Checkpoint | None, size: int = 400) -> str:
    """The difference between a checkpoint and its save; empty if there is none."""
    if found is None:
        return "no checkpoint was found"
    number = found.properties["number"]
    if found.properties != properties_of(number) or found.metric != metric_of(number):
        return f"save {number}: its properties are not as they were saved"
    for name, wanted in tensors_of(number, size).items():
        tensor = found.tensors.pop(name, None)
        if tensor is None or tensor.dtype != wanted.dtype or not np.array_equal(tensor, wanted):
            return f"save {number}: {name!r} is not as it was saved"
    return f"save {number}: it has more than was saved" if found.tensors else ""


def leftovers(folder: Path) -> list[str]:
    """Temporary files that a writer left behind."""
    return [path.name for path in folder.iterdir() if path.suffix == ".part"]


Hook = Callable[[str, tuple[Any, ...], Callable[..., Any]], Any]


class WatchedDisk:
    """The real disk, with a hook around each operation: hook(name, arguments, operation)."""

    def __init__(self, hook: Hook) -> None:
        self._disk, self._hook = RealDisk(), hook

    def __getattr__(self, name: str) -> Any:
        do = getattr(self._disk, name)
        return lambda *arguments: self._hook(name, arguments, do)


def write_half(arguments: tuple[Any, ...], do: Callable[..., Any]) -> None:
    """Write only the first half, as a machine that stops during the write."""
    file, offset, data = arguments
    do(file, offset, data[: len(data) // 2])
