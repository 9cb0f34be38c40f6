"""Module: a PyTorch module that trains on Onward's gradient graph."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd import forward_ad

from onward.errors import OptionError, OptionTypeError
from onward.pytorch.captured_module import ONE_CAPTURE, CapturedModule
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.module_options import ModuleOptions

_SHARED = tuple(name for name, held in vars(nn.Module()).items() if isinstance(held, (dict, set)))
_OWN = ("_wrapped", "_options", "_captured", "forward", "training")


_DELEGATED = (
    *("parameters", "named_parameters", "buffers", "named_buffers", "zero_grad"),
    *("requires_grad_", "to", "cpu", "cuda", "half", "float", "double", "bfloat16"),
)


def _delegated(name: str) -> Any:
    """A method that is the wrapped module's own, if its class or itself replaced nn.Module's."""
    usual: Any = getattr(nn.Module, name)

    @functools.wraps(usual)
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._wrapped, name)
        if getattr(method, "__func__", method) is usual:
            return usual(self, *args, **kwargs)
        found = method(*args, **kwargs)
        return self if found is self._wrapped else found

    return call


class Module(nn.Module):
    """Wrap a module: its forward and backward run on captured graphs, the rest stays as it is.

    Parameters, buffers, submodules and attributes are the wrapped module's own, under the same
    names. The first call of each kind captures the module, differentiates it and compiles both
    graphs; what cannot be captured runs in PyTorch.

    >>> model = Module(nn.Linear(3, 1))
    >>> model(torch.ones(2, 3)).sum().backward()
    >>> model.bias.grad, sorted(model.state_dict())
    (tensor([2.]), ['bias', 'weight'])
    """

    _wrapped: nn.Module
    _options: ModuleOptions
    _captured: CapturedModule

    def __init__(
        self, module: nn.Module, options: ModuleOptions | Mapping[str, Any] | None = None
    ) -> None:
        self._check(module)
        super().__init__()
        self.__dict__["_options"] = ModuleOptions.of(options)
        self._wrap(module)

    def _check(self, module: Any) -> None:
        """Refuse what cannot be wrapped."""
        if not isinstance(module, nn.Module):
            raise OptionTypeError(
                f"{type(self).__name__} takes a torch.nn.Module, not {type(module).__name__}\n"
                "for an ONNX model, use onward.TrainingSession"
            )
        if isinstance(module, Module):
            raise OptionError("the module is wrapped already\nwrap the module itself: it.module")
        if isinstance(module, nn.DataParallel):
            raise OptionError(_DATA_PARALLEL)

    def _wrap(self, module: nn.Module) -> None:
        attributes = self.__dict__
        attributes["_wrapped"] = module
        for name in _SHARED:  # the same dictionaries: changes of one are changes of the other
            attributes[name] = module.__dict__[name]
        attributes["training"] = module.training
        if attributes["_is_full_backward_hook"] is None:
            attributes["_is_full_backward_hook"] = module._is_full_backward_hook
        attributes["_captured"] = self._capture_calls(module)
        forward = functools.wraps(module.forward)(functools.partial(_forward, self))
        attributes["forward"] = forward

    def _capture_calls(self, module: nn.Module) -> CapturedModule:
        """What runs the module's calls."""
        return CapturedModule(module, self._options)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return self._captured(*args, **kwargs)

    # -- what it runs --------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._wrapped

    @property
    def options(self) -> ModuleOptions:
        return self._options

    @property
    def programs(self) -> list[CapturedProgram]:
        """The programs that were captured so far."""
        return self._captured.programs

    @property
    def fallbacks(self) -> dict[str, str]:
        """The submodules that run in PyTorch, and why; "" is the wrapped module itself."""
        return self._captured.fallbacks

    # -- as the wrapped module -----------------------------------------------------------------

    def train(self, mode: bool = True) -> Module:
        self._wrapped.train(mode)
        self.__dict__["training"] = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.load_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Module:
        self._wrapped._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return f"provider={self._options.provider!r}"

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "_wrapped" not in self.__dict__:
                raise
            return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in _OWN or name in self.__dict__ or "_wrapped" not in self.__dict__
        own = own or name == "__class__"  # FSDP2 sets it
        if own and not isinstance(value, (nn.Parameter, nn.Module)):
            super().__setattr__(name, value)
            return
        before = self._wrapped.__dict__.get(name)
        setattr(self._wrapped, name, value)
        if isinstance(before, (bool, int, float, str)) and before != value:
            self._captured.forget()  # a trace has such values as constants

    def __delattr__(self, name: str) -> None:
        delattr(self._wrapped, name)

    # Containers such as nn.Sequential have these; Any: other modules answer with a TypeError.

    def __getitem__(self, index: Any) -> Any:
        return self._any[index]

    def __len__(self) -> int:
        return len(self._any)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._any[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._any[index]

    def __contains__(self, item: Any) -> bool:
        return item in self._any

    def __iter__(self) -> Iterator[Any]:
        yield from self._any

    def __bool__(self) -> bool:
        return bool(self._wrapped)  # else Python would ask for the length

    @property
    def _any(self) -> Any:
        return self._wrapped

    def __getstate__(self) -> dict[str, Any]:
        kept = {k: v for k, v in self.__dict__.items() if k not in ("_captured", "forward")}
        return {k: v for k, v in kept.items() if k not in _SHARED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        wrapped = state["_wrapped"]
        shared = {name: wrapped.__dict__[name] for name in _SHARED}
        super().__setstate__({**state, **shared})  # type: ignore[no-untyped-call]
        self._wrap(wrapped)

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise OptionError(_DATA_PARALLEL)


_DATA_PARALLEL = (
    "nn.DataParallel copies a module in every call, and programs are not copied with it\n"
    "use torch.nn.parallel.DistributedDataParallel"
)


for _name in _DELEGATED:
    setattr(Module, _name, _delegated(_name))


def _forward(wrapper: Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_dynamo_compiling() or _is_traced():  # other compilers trace through it
        return wrapper._wrapped.forward(*args, **kwargs)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise OptionError(
            "onward.Module does not run under torch.func (vmap, grad, functional_call in them)\n"
            "transform the module that it wraps: module.module"
        )
    if forward_ad._current_level >= 0:  # tangents, which no program has
        return wrapper._wrapped.forward(*args, **kwargs)
    return wrapper._run(*args, **kwargs)


def _is_traced() -> bool:
    """Whether a trace of this thread is under way; captures of other threads are waited for."""
    with ONE_CAPTURE:
        return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
