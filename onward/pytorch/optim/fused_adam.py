"""FusedAdam: Adam and both kinds of AdamW, one kernel per device and data type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from onward.errors import GradientUnsupported, OptionError
from onward.pytorch.optim.adam_kernels import AdamCall, update_fused, update_separately
from onward.settings import finite_number, one_of, setting_error

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class AdamWMode(IntEnum):
    """What `weight_decay` means to FusedAdam; onnxruntime.training's names and numbers."""

    ADAM_L2_REGULARIZATION = 0  # added to the gradient, as in torch.optim.Adam
    ADAMW_TRANSFORMERS = 1  # applied after the update, as in transformers' former AdamW
    ADAMW_TORCH = 2  # applied before the update, as in torch.optim.AdamW


class FusedAdam(torch.optim.Optimizer):
    """Adam for parameters of float32, bfloat16, float16 and float64, on the CPU and on devices.

    With bias correction, c1 = 1 - beta1^step and c2 = 1 - beta2^step; without, both are 1.

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
        ADAM_L2_REGULARIZATION   g = g + wd p first;  p = p - lr (m / c1) / (sqrt(v / c2) + eps)
        ADAMW_TORCH              p = p - lr wd p first;  p = p - lr (m / c1) / (sqrt(v / c2) + eps)
        ADAMW_TRANSFORMERS       p = p - lr sqrt(c2) / c1 m / (sqrt(v) + eps);  p = p - lr wd p

    The step is counted per group: `param_groups[i]["step"]`. A state of torch.optim.Adam or AdamW
    can be loaded.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = FusedAdam([weight], lr=0.1)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.data
    tensor([0.9000, 0.9000])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode | int = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        self._adam_w_mode = one_of(AdamWMode)("FusedAdam.adam_w_mode", adam_w_mode)
        self._set_grad_none = set_grad_none
        super().__init__(
            params,
            {
                "lr": lr,
                "bias_correction": bias_correction,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its settings are checked."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except OptionError:
            del self.param_groups[-1]
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients, or set them to zero if neither `set_grad_none` nor this is set."""
        super().zero_grad(set_to_none=self._set_grad_none or set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; return what the closure returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for (device, _), lists in self._lists_by_kernel(group).items():
                    call = self._call(group)
                    step = torch.full((), call.step, dtype=torch.float32, device=device)
                    update_fused(call, step, *lists)
        return loss

    def _call(self, group: dict[str, Any]) -> AdamCall:
        return AdamCall.of_mode(
            self._adam_w_mode.name,
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            step=group["step"] if group["bias_correction"] else float("inf"),
        )

    def _lists_by_kernel(
        self, group: dict[str, Any]
    ) -> dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], ...]]:
        """Parameters, gradients and moments, by device and data type.

        A tensor whose memory is not in its parameter's order is updated here by itself.
        """
        found: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], ...]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                raise GradientUnsupported(
                    f"FusedAdam does not support sparse gradients, such as of a parameter of shape "
                    f"{tuple(p.shape)}\nuse torch.optim.SparseAdam for it, or sparse=False"
                )
            state = self.state[p]
            if not state:
                state["exp_avg"] = torch.zeros_like(p)
                state["exp_avg_sq"] = torch.zeros_like(p)
            tensors = (p, p.grad, state["exp_avg"], state["exp_avg_sq"])
            if not _have_one_order(tensors):
                update_separately(self._call(group), *tensors)
                continue
            lists = found.setdefault((p.device, p.dtype), ([], [], [], []))
            for kind, tensor in zip(lists, tensors):
                kind.append(tensor)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and copy.deepcopy keep."""
        kept = {"_adam_w_mode": self._adam_w_mode, "_set_grad_none": self._set_grad_none}
        return super().__getstate__() | kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state; torch's own optimizers have a step per parameter, which becomes one."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            states = [self.state[p] for p in group["params"] if p in self.state]
            steps = [int(each.pop("step")) for each in states if "step" in each]
            if steps:
                group.setdefault("step", max(steps))


def _have_one_order(tensors: tuple[Tensor, ...]) -> bool:
    """Whether tensors' elements lie in memory in the same order without gaps.

    A fused kernel on the CPU reads memory from the first element on and asks no strides.
    """
    if all(tensor.is_contiguous() for tensor in tensors):
        return True
    stride = tensors[0].stride()
    return all(tensor.stride() == stride for tensor in tensors) and _is_dense(tensors[0])


def _is_dense(tensor: Tensor) -> bool:
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _check_group(group: dict[str, Any]) -> None:
    """Check a group's settings and the data types of its parameters."""
    for name in ("lr", "eps", "weight_decay"):
        value = group[name]
        given = finite_number(value.item() if isinstance(value, Tensor) else value)
        if given is None or given < 0:
            raise setting_error(f"FusedAdam.{name}", "a number, at least 0", value)
    betas = group["betas"]
    if len(betas) != 2 or any(not 0 <= float(beta) < 1 for beta in betas):
        raise setting_error("FusedAdam.betas", "two numbers from 0 to below 1", betas)
    for p in group["params"]:
        if p.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise setting_error("FusedAdam's parameters", f"of {known}", p.dtype)
