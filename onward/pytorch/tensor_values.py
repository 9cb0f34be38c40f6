"""Numbers that a forward reads of a tensor in a trace: a program is valid for these alone."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import nn


class ReadValue:
    """The value of a buffer or an attribute by its path, or of a tensor that has none."""

    def __init__(self, module: nn.Module, path: str | None, tensor: torch.Tensor) -> None:
        self._path, self._module, self._tensor = path, module, tensor
        self._value: Any = tensor.tolist()

    def is_current(self) -> bool:
        now = self._tensor if self._path is None else attrgetter(self._path)(self._module)
        return isinstance(now, torch.Tensor) and bool(now.tolist() == self._value)
