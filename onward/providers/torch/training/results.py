"""TorchResults: results of a graph that stay on the device until they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onward.providers.torch.tensors import to_numpy
from onward.providers.torch.training.packed_results import unpacked


class TorchResults(Mapping[str, Any]):
    """Results by name: torch tensors on their device, or numpy arrays, copied when accessed.

    Accessing a numpy result waits for the GPU; results that are not accessed cost nothing.
    """

    def __init__(self, tensors: Mapping[str, Any], as_numpy: bool) -> None:
        self._tensors, self._as_numpy = dict(tensors), as_numpy
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            tensor = unpacked(self._tensors[name])
            self._read[name] = to_numpy(tensor) if self._as_numpy else tensor
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"TorchResults({', '.join(self._tensors)})"
