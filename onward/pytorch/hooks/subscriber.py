"""SubscriberBase: what a subscriber may do around the forward of modules."""

from __future__ import annotations

import sys
from typing import Any

import torch


class GlobalStates:
    """What a manager counts: the steps, and the modules in the order of their registration."""

    def __init__(self) -> None:
        self.execution_step = 0  # complete forward passes of the outermost module
        self.module_index_to_depth: dict[int, int] = {}
        self.module_to_module_index: dict[torch.nn.Module, int] = {}


class RuntimeStates:
    """What every method of a subscriber is given: the manager's counts, as `global_states`."""

    def __init__(self) -> None:
        self.global_states = GlobalStates()


class SubscriberBase:
    """A subscriber to the modules of a model; subclasses override some of the methods `*_impl`.

    They are called in the steps from `start_step` to before `end_step`; None means the first and
    no end. Each returns what the module, or the code after it, is to see instead: the same
    objects if nothing is to change. Methods with `tensor` are called for each tensor.

    >>> class Shapes(SubscriberBase):
    ...     def post_forward_tensor_apply_impl(self, run_rtx, module, tensor_index, tensor):
    ...         print(type(module).__name__, tensor_index, tuple(tensor.shape))
    ...         return tensor
    >>> from onward.pytorch.hooks.subscriber_manager import SubscriberManager
    >>> model = torch.nn.Linear(2, 3)
    >>> SubscriberManager().subscribe(model, [Shapes(None, None)])
    >>> y = model(torch.zeros(4, 2))
    Linear 0 (4, 3)
    """

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self._start_step = 0 if start_step is None else start_step
        self._end_step = sys.maxsize if end_step is None else end_step

    def is_active(self, step: int) -> bool:
        """Whether the subscriber takes part in a step."""
        return self._start_step <= step < self._end_step

    def pre_forward_outmost_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Before the forward of the outermost module."""
        return args, kwargs

    def pre_forward_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Before the forward of each module."""
        return args, kwargs

    def pre_forward_tensor_apply_impl(
        self,
        run_rtx: RuntimeStates,
        module: torch.nn.Module,
        tensor_index: int,
        tensor: torch.Tensor,
    ) -> torch.Tensor:
        """Before the forward of each module, for each tensor in its arguments."""
        return tensor

    def post_forward_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, output: Any
    ) -> tuple[Any, Any]:
        """After the forward of each module; of what is returned, the output is used."""
        return args, output

    def post_forward_tensor_apply_impl(
        self,
        run_rtx: RuntimeStates,
        module: torch.nn.Module,
        tensor_index: int,
        tensor: torch.Tensor,
    ) -> torch.Tensor:
        """After the forward of each module, for each tensor in its output."""
        return tensor

    def post_forward_outmost_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """After the forward of the outermost module; of what is returned, the outputs are used."""
        return args, outputs
