"""SubscriberManager: registers subscribers as hooks of a model's modules, and counts the steps."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch.utils.hooks import RemovableHandle

from onward.errors import EntryMissing
from onward.pytorch.hooks.subscriber import RuntimeStates, SubscriberBase
from onward.pytorch.nested_data import map_tensors
from onward.settings import is_named, setting_error

T = TypeVar("T", bound=SubscriberBase)

_PAUSED = [False]


@contextmanager
def no_increase_global_step() -> Iterator[None]:
    """Run modules without their subscribers: a forward pass here is not a step of training."""
    before, _PAUSED[0] = _PAUSED[0], True
    try:
        yield
    finally:
        _PAUSED[0] = before


class SubscriberManager:
    """Lets subscribers see the inputs and outputs of a model and of its modules.

    A step is one forward pass of the model and what follows from it.

    >>> from onward.pytorch.hooks.statistics import StatisticsSubscriber
    >>> manager = SubscriberManager()
    >>> model = torch.nn.Linear(2, 2)
    >>> manager.subscribe(model, [StatisticsSubscriber("statistics", end_step=0)])
    >>> y = model(torch.zeros(1, 2))
    >>> manager.get_run_context().global_states.execution_step
    1
    """

    def __init__(self) -> None:
        self._states = RuntimeStates()
        self._subscribers: list[SubscriberBase] = []
        self._handles: list[RemovableHandle] = []

    def subscribe(self, module: torch.nn.Module, subscribers: Sequence[SubscriberBase]) -> None:
        """Register subscribers, in place of earlier ones, and begin with step 0."""
        if not isinstance(module, torch.nn.Module):
            raise setting_error("module", "a torch.nn.Module", module)
        if not subscribers:
            raise EntryMissing(
                "No subscribers are registered: the list is empty\ngive at least one"
            )
        for subscriber in subscribers:
            if not isinstance(subscriber, SubscriberBase):
                raise setting_error("a subscriber", "a SubscriberBase", subscriber)
        self.unsubscribe()
        self._states = RuntimeStates()
        self._subscribers = list(dict.fromkeys(subscribers))
        if is_named(module, "ORTModule"):
            module = cast(torch.nn.Module, module.module)
        self._number(module)
        self._register(module)

    def unsubscribe(self) -> None:
        """Remove all hooks and subscribers."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._subscribers = []

    def get_subscriber(self, subscriber_type: type[T]) -> T:
        """The first subscriber of a class."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, subscriber_type):
                return subscriber
        raise EntryMissing(
            f"Subscriber {subscriber_type} is not registered.\n"
            "register it: GlobalSubscriberManager.subscribe(model, [subscriber])"
        )

    def get_run_context(self) -> RuntimeStates:
        """The steps and modules that are counted."""
        return self._states

    def __deepcopy__(self, memo: dict[int, Any]) -> SubscriberManager:
        return self  # a copy of a model reports to the same subscribers

    def _number(self, module: torch.nn.Module, depth: int = 1) -> None:
        """Number the modules from 0 on, parents first; their depths count from 1."""
        states = self._states.global_states
        index = len(states.module_to_module_index)
        states.module_to_module_index[module] = index
        states.module_index_to_depth[index] = depth
        for child in module.children():
            if child not in states.module_to_module_index:
                self._number(child, depth + 1)

    def _register(self, outermost: torch.nn.Module) -> None:
        self._handles.append(
            outermost.register_forward_pre_hook(self._before_outermost, with_kwargs=True)
        )
        for module in self._states.global_states.module_to_module_index:
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after))
        self._handles.append(outermost.register_forward_hook(self._after_outermost))

    def _active(self) -> list[SubscriberBase]:
        step = self._states.global_states.execution_step
        return [] if _PAUSED[0] else [each for each in self._subscribers if each.is_active(step)]

    def _before_outermost(self, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        states = self._states.global_states
        if module not in states.module_to_module_index:  # a copy, which has copies of the hooks
            states.module_to_module_index.clear()
            self._number(module)
        for each in self._active():
            args, kwargs = each.pre_forward_outmost_module_apply_impl(
                self._states, module, args, kwargs
            )
        return args, kwargs

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for each in self._active():
            args, kwargs = each.pre_forward_module_apply_impl(self._states, module, args, kwargs)
            if not _overrides(each, "pre_forward_tensor_apply_impl"):
                continue
            apply = functools.partial(each.pre_forward_tensor_apply_impl, self._states, module)
            args, kwargs = map_tensors(apply, args), map_tensors(apply, kwargs)
        return args, kwargs

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        for each in self._active():
            _, output = each.post_forward_module_apply_impl(self._states, module, args, output)
            if not _overrides(each, "post_forward_tensor_apply_impl"):
                continue
            apply = functools.partial(each.post_forward_tensor_apply_impl, self._states, module)
            output = map_tensors(apply, output)
        return output

    def _after_outermost(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        for each in self._active():
            args, output = each.post_forward_outmost_module_apply_impl(
                self._states, module, args, output
            )
        if not _PAUSED[0]:
            self._states.global_states.execution_step += 1
        return output


def is_subscribed(module: torch.nn.Module) -> bool:
    """Whether subscribers see a module or a part of it, so that it must run as PyTorch code."""
    hooks = (hook for part in module.modules() for hook in part._forward_hooks.values())
    return any(isinstance(getattr(hook, "__self__", None), SubscriberManager) for hook in hooks)


def _overrides(subscriber: SubscriberBase, method: str) -> bool:
    return getattr(type(subscriber), method) is not getattr(SubscriberBase, method)


# The manager for code in different files, such as a model that calls `inspect_activation`.
GlobalSubscriberManager = SubscriberManager()
