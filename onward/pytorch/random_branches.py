"""Decide branches on random numbers that can only go one way, while a module is traced.

LayerDrop of transformers' models is `if torch.rand([]) < self.layerdrop: skip`: torch.export cannot
follow a branch on a drawn number, even if the probability is 0 and no layer is ever skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_LESS = (torch.lt, torch.Tensor.lt, torch.Tensor.__lt__)


class DecidedDraws(TorchFunctionMode):
    """While entered, `torch.rand([]) < p` is False for p <= 0: a draw is never negative."""

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[Any] = []  # kept alive, so that no other tensor is taken for one

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _LESS and len(args) == 2 and self._is_never(*args):
            return False
        result = function(*args, **(kwargs or {}))
        if function is torch.rand and result.ndim == 0:
            self._draws.append(result)
        return result

    def _is_never(self, drawn: Any, bound: Any) -> bool:
        """Whether `drawn` is a draw, and `bound` a number below which no draw is."""
        is_number = isinstance(bound, (int, float)) and bound <= 0
        return is_number and any(drawn is draw for draw in self._draws)
