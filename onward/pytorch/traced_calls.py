"""TracedCalls: watches the functions of torch that a forward calls while it is traced.

It refuses what a trace does not see, collects what a program depends on, and decides branches that
can only go one way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from onward.pytorch.changing_items import Initializes, ItemKey
from onward.pytorch.fallback import CannotCapture, Differentiates
from onward.pytorch.layout_reads import OFFSET, STRIDES
from onward.pytorch.tensor_aliases import memory_of
from onward.pytorch.tensor_values import ReadValue

_Arguments = Sequence[Any]
_Names = Mapping[str, Any]


_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
_PLAIN = {torch.Tensor, nn.Parameter, nn.Buffer}  # tensors with memory, not those of a trace


class TracedCalls(TorchFunctionMode):
    """While entered, watches calls of torch in a trace of the module with these arguments.

    layouts: what the code outside of torch has read of layouts in memory, STRIDES and OFFSET.
    items: which of the `changing` items' tensors were read, by `tensors_of_items`.
    values: numbers that were read of buffers and attributes, which branches may depend on.
    hidden: tensors that are none of the module's attributes, by where their memory is.
    trained: where those of them are that get gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Sequence[torch.Tensor],
        changing: Mapping[int, ItemKey] | None = None,
    ) -> None:
        super().__init__()
        self.layouts: set[str] = set()
        self.items: set[ItemKey] = set()
        self.values: dict[Any, ReadValue] = {}
        self.hidden: dict[int, torch.Tensor] = {}
        self.trained: set[int] = set()
        self._module, self._changing = module, dict(changing or {})
        self._buffers: dict[str | None, torch.Tensor] = dict(module.named_buffers())
        self._names = attribute_names(module)
        self._known = {id(tensor) for tensor in (*call, *_tensors(module))}
        self._is_forward = False
        self._changed: set[int] = set()  # tensors that were changed in place
        self._aliases: dict[int, tuple[Any, Any]] = {}  # what .data and detach give, and of what
        self._was_inference = torch.is_inference_mode_enabled()
        self._draws: list[Any] = []  # kept alive, so that no other tensor is taken for one

    @contextmanager
    def in_forward(self) -> Iterator[None]:
        """Where the forward runs: its buffers are tensors of the trace."""
        self._names |= {id(tensor): path for path, tensor in self._module.named_buffers()}
        self._is_forward = True
        try:
            yield
            for tensor, path in self._names.items():
                if tensor in self._changed and path in self.values:
                    raise Initializes(f"it reads a number of its buffer {path}, which it changes")
        finally:
            self._is_forward = False

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
        if not self._is_forward:  # torch.export's own calls
            return function(*args, **given)
        for leaf in pytree.tree_leaves((args, given)):
            if id(leaf) in self._changing:
                self.items.add(self._changing[id(leaf)])
            if type(leaf) in _PLAIN and id(leaf) not in self._known:
                self._read_real(leaf)
        if _is_in_place(function) and args:
            self._change(args[0])
        watch = _WATCHED.get(function)
        found = NotImplemented if watch is None else watch(self, function, args, given)
        return function(*args, **given) if found is NotImplemented else found

    def _read_real(self, tensor: torch.Tensor) -> None:
        memory, original = memory_of(tensor), self._original(tensor)
        if memory and (original is not tensor or id(tensor) not in self._names):
            self.hidden.setdefault(memory, original)
            if tensor.requires_grad and torch.is_grad_enabled():
                self.trained.add(memory)

    def _change(self, tensor: Any) -> None:
        """Refuse changes of tensors that torch.export would change, and not trace."""
        if type(tensor) in _PLAIN and id(tensor) not in self._known:
            raise CannotCapture("it changes a tensor in place that is no buffer: register it")
        self._changed.add(id(self._original(tensor)))

    def _original(self, tensor: Any) -> Any:
        while id(tensor) in self._aliases:
            _, tensor = self._aliases[id(tensor)]
        return tensor

    # -- what is done for some functions; NotImplemented: the function itself ------------------

    def refuse_hook(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        raise CannotCapture(f"it calls {function.__name__} of a tensor")

    def refuse_gradient(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        is_own = _calling_module() is self._module  # and not of a submodule, a part of its own
        kind = Differentiates if is_own else CannotCapture
        raise kind("its forward computes gradients (torch.autograd)")

    def alias(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        found = function(*args, **kwargs)
        self._aliases[id(found)] = (found, args[0])
        return found

    def read_value(self, function: Any, args: _Arguments, kwargs: _Names) -> Any:
        """A number, or a list of them: calls for which it differs are captured again."""
        traced: torch.Tensor = args[0]
        path = self._names.get(id(traced))
        is_hidden = type(traced) in _PLAIN and memory_of(traced) in self.hidden
        if id(traced) in self._changed or (path is None and not is_hidden):
            return NotImplemented
        real = self._buffers.get(path, traced)
        with _disable_current_modes():
            self.values[path or id(real)] = ReadValue(self._module, path, real)
            return function(real, *args[1:], **kwargs)

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


_VALUES = (
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__int__),
    *(torch.Tensor.__float__, torch.Tensor.__index__),
)
_WATCHED: dict[Any, Callable[[TracedCalls, Any, _Arguments, _Names], Any]] = {
    torch.Tensor.register_hook: TracedCalls.refuse_hook,
    torch.Tensor.register_post_accumulate_grad_hook: TracedCalls.refuse_hook,
    torch.autograd.grad: TracedCalls.refuse_gradient,
    torch.autograd.backward: TracedCalls.refuse_gradient,
    torch.Tensor.backward: TracedCalls.refuse_gradient,
    torch.Tensor.data.__get__: TracedCalls.alias,  # type: ignore[attr-defined]
    torch.Tensor.detach: TracedCalls.alias,
    **dict.fromkeys(_VALUES, TracedCalls.read_value),
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


def _calling_module() -> Any:
    """The module whose method calls a function of torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not isinstance(frame.f_locals.get("self"), nn.Module):
        frame = frame.f_back
    return frame.f_locals.get("self")


def attribute_names(module: nn.Module) -> dict[int, str]:
    """The paths of tensors that are attributes, and neither parameters nor buffers."""
    return {
        id(value): f"{path}.{name}".removeprefix(".")
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if isinstance(value, torch.Tensor)
    }


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _is_in_place(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or name in _OPERATORS or (name[-1:] == "_" and name[:2] != "__")
