"""TracedCalls: watches the functions of torch that a forward calls while it is traced.

It refuses what a trace does not see, collects what a program depends on, and decides branches that
can only go one way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onward.pytorch.changing_items import ItemKey
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.layout_reads import OFFSET, STRIDES

_Arguments = Sequence[Any]
_Names = Mapping[str, Any]


class TracedCalls(TorchFunctionMode):
    """While entered, watches calls of torch; `items` are tensors in places that calls change.

    layouts: what the code outside of torch has read of layouts in memory, STRIDES and OFFSET.
    items: the places whose tensors were read.
    """

    def __init__(self, items: Mapping[int, ItemKey] | None = None) -> None:
        super().__init__()
        self.layouts: set[str] = set()
        self.items: set[ItemKey] = set()
        self._items = dict(items or {})
        self._was_inference = torch.is_inference_mode_enabled()
        self._draws: list[Any] = []  # kept alive, so that no other tensor is taken for one

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        # around the call it changes nothing: torch.export leaves it while it traces
        if torch.is_inference_mode_enabled() and not self._was_inference:
            raise CannotCapture("it enters inference_mode: use no_grad")
        if self._items:
            leaves = map(id, pytree.tree_leaves((args, given)))
            self.items.update(self._items[each] for each in leaves if each in self._items)
        watch = _WATCHED.get(function)
        found = NotImplemented if watch is None else watch(self, function, args, given)
        return function(*args, **given) if found is NotImplemented else found

    # -- what is done for some functions; NotImplemented: the function itself ------------------

    def refuse_hook(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        raise CannotCapture(f"it calls {function.__name__} of a tensor")

    def read_strides(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        if not _is_called_by_torch():
            self.layouts.add(STRIDES)
        return NotImplemented

    def read_offset(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        if not _is_called_by_torch():
            self.layouts.add(OFFSET)
        return NotImplemented

    def read_as_strided(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        if not _is_called_by_torch():
            has_offset = len(args) > 3 or "storage_offset" in kwargs
            self.layouts.update({STRIDES, OFFSET} if has_offset else {STRIDES})
        return NotImplemented

    def draw(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        drawn = function(*args, **kwargs)
        if drawn.ndim == 0:
            self._draws.append(drawn)
        return drawn

    def compare_draw(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        """`torch.rand([]) < p` is False for p <= 0: a draw is never negative.

        LayerDrop of transformers' models is `if torch.rand([]) < self.layerdrop: skip`, and
        torch.export cannot follow a branch on a number that is drawn.
        """
        is_never = len(args) == 2 and isinstance(args[1], (int, float)) and args[1] <= 0
        if is_never and any(args[0] is draw for draw in self._draws):
            return False
        return NotImplemented


_WATCHED: dict[Any, Callable[[TracedCalls, Any, _Arguments, _Names], Any]] = {
    torch.Tensor.register_hook: TracedCalls.refuse_hook,
    torch.Tensor.register_post_accumulate_grad_hook: TracedCalls.refuse_hook,
    torch.Tensor.stride: TracedCalls.read_strides,
    torch.Tensor.is_contiguous: TracedCalls.read_strides,
    torch.Tensor.storage_offset: TracedCalls.read_offset,
    torch.as_strided: TracedCalls.read_as_strided,
    torch.Tensor.as_strided: TracedCalls.read_as_strided,
    torch.Tensor.as_strided_: TracedCalls.read_as_strided,
    torch.rand: TracedCalls.draw,
    torch.lt: TracedCalls.compare_draw,
    torch.Tensor.lt: TracedCalls.compare_draw,
    torch.Tensor.__lt__: TracedCalls.compare_draw,
}


def _is_called_by_torch() -> bool:
    """Whether the code that called a function of torch is torch's own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back  # of this mode, and of others
    return str(frame.f_globals.get("__name__", "")).split(".")[0] == "torch"
