"""Refuse, while a module is traced, calls of torch that change gradients and leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from onward.pytorch.fallback import CannotCapture

_HOOKS = {
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
}


class UntracedCalls(TorchFunctionMode):
    """While entered, hooks of tensors and a change of `inference_mode` raise CannotCapture."""

    def __init__(self) -> None:
        super().__init__()
        self._is_inference = torch.is_inference_mode_enabled()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _HOOKS:
            raise CannotCapture(f"it calls {function.__name__} of a tensor")
        if torch.is_inference_mode_enabled() != self._is_inference:
            raise CannotCapture("it enters inference_mode: use no_grad")
        return function(*args, **(kwargs or {}))


class RequiredGradients:
    """Which tensors require gradients; `check` refuses a forward that changed it."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._before = [(tensor, tensor.requires_grad) for tensor in tensors]

    def check(self) -> None:
        if any(tensor.requires_grad != before for tensor, before in self._before):
            raise CannotCapture("it calls requires_grad_ of an argument or a parameter")
