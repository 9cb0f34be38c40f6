"""StatisticsSubscriber: writes statistics of activations and of their gradients into files."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onward.errors import FileExists
from onward.pytorch.hooks.subscriber import RuntimeStates, SubscriberBase
from onward.pytorch.hooks.subscriber_manager import GlobalSubscriberManager
from onward.pytorch.hooks.tensor_summary import summarize_tensor

Report = Callable[[Tensor, int, str, int], None]  # of a tensor, its depth, its name, the step


class InspectActivation(torch.autograd.Function):
    """The identity; it reports its input forward, and its gradient backward."""

    @staticmethod
    def forward(
        ctx: Any,
        activation_name: str,
        module_idx: int | None,
        run_ctx: RuntimeStates,
        input_tensor: Tensor,
        module_post_forward: Report | None = None,
        module_pre_backward: Report | None = None,
    ) -> Tensor:
        """Report the activation; without functions, to the global manager's subscriber."""
        if module_post_forward is None or module_pre_backward is None:
            subscriber = GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)
            module_post_forward = subscriber.module_post_forward_impl
            module_pre_backward = subscriber.module_pre_backward_impl
        states = run_ctx.global_states
        depth = -1 if module_idx is None else states.module_index_to_depth[module_idx]
        ctx.report = module_pre_backward
        ctx.place = (depth, activation_name, states.execution_step)
        module_post_forward(input_tensor.detach(), *ctx.place)
        return input_tensor.clone()  # no view: the code after it may change it in place

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        """Report the gradient, and pass it on."""
        ctx.report(grad_output.detach(), *ctx.place)
        return None, None, None, grad_output, None, None


class StatisticsSubscriber(SubscriberBase):
    """Write, for each output of each module, what its numbers are like, in every step.

    A step's folder `output_dir/step_0` has one file per activation, `Linear_1_0th_output_forward`
    (the class, the module's number, the output's), one per gradient (`..._backward`), and
    `order.txt`, their names in order. Compare the folders of two runs to find where they part.
    `run_on_cpu` computes on the CPU, where a device has no memory left; `bucket_size` is the
    number of elements that are looked at together.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        start_step: int | None = None,
        end_step: int | None = None,
        override_output_dir: bool = False,
        run_on_cpu: bool = False,
        bucket_size: int = 1024 * 1024 * 1024 // 2,
    ) -> None:
        super().__init__(start_step=start_step, end_step=end_step)
        self._output_dir = Path(output_dir)
        self._run_on_cpu = run_on_cpu
        self._bucket_size = bucket_size
        if not self._output_dir.exists():
            return
        if not override_output_dir:
            raise FileExists(
                f"Output directory {output_dir} already exists.\n"
                "choose another one, or replace it: StatisticsSubscriber(override_output_dir=True)"
            )
        warnings.warn(
            f"Output directory {output_dir} already exists, overriding it.",
            UserWarning,
            stacklevel=2,
        )
        shutil.rmtree(self._output_dir)

    def post_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        """Report a module's output, and later its gradient."""
        index = run_rtx.global_states.module_to_module_index[module]
        name = f"{type(module).__name__}_{index}_{tensor_index}th_output"
        reports = self.module_post_forward_impl, self.module_pre_backward_impl
        found: Tensor = InspectActivation.apply(name, index, run_rtx, tensor, *reports)  # type: ignore[no-untyped-call]
        return found

    def module_post_forward_impl(
        self, activation: Tensor, depth: int, name: str, step: int
    ) -> None:
        """Write the statistics of an activation."""
        self._write(activation, depth, name, step, "forward")

    def module_pre_backward_impl(
        self, activation: Tensor, depth: int, name: str, step: int
    ) -> None:
        """Write the statistics of an activation's gradient."""
        self._write(activation, depth, name, step, "backward")

    def _write(self, tensor: Tensor, depth: int, name: str, step: int, run: str) -> None:
        folder = self._output_dir / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "order.txt").open("a", encoding="utf-8") as order:
            order.write(f"{name}_{run}\n")
        title = f"{'>' * max(0, depth)}{name} {run} run"
        tensor = tensor.cpu() if self._run_on_cpu else tensor
        text = summarize_tensor(title, tensor, self._bucket_size)
        (folder / f"{name}_{run}").write_text(text, encoding="utf-8")


def inspect_activation(activation_name: str, tensor: Tensor) -> Tensor:
    """The tensor; the global manager's StatisticsSubscriber writes its statistics.

    For tensors inside a module's forward, which are no module's output. Raises if there is no such
    subscriber.
    """
    subscriber = GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)
    states = GlobalSubscriberManager.get_run_context()
    if not subscriber.is_active(states.global_states.execution_step):
        return tensor
    found: Tensor = InspectActivation.apply(activation_name, None, states, tensor)  # type: ignore[no-untyped-call]
    return found
