"""Compare an engine with eager torch on one architecture: outputs, gradients, buffers, losses.

    python -m conformance.architectures.compare NAME ENGINE STEPS    # prints one line of JSON

Differences are relative to the largest value of a tensor. One that is nothing next to the others of
its group is rounding alone (the gradient of a key's bias, of a bias before BatchNorm), and is
measured relative to a tenth of their largest value. A tensor that is further away than 1e-5 is near
enough if it is as near to the result in float64 as eager's own float32 is.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from conformance.architectures.case import Case
from conformance.architectures.engines import ENGINES, Running
from conformance.architectures.table import build

TOLERANCE, LOSS_TOLERANCE = 1e-5, 1e-4
NOTHING, TENTH = 1e-5, 0.1  # of the largest value of a group
ROUNDING = 2.0  # times eager's distance from float64
DRAWS, STANDARD_ERRORS = 48, 5.0
FELL_BACK = "falls back"  # in the text of Module's warning

Tensors = Mapping[str, torch.Tensor | None]


def compare(name: str, engine: str = "module", steps: int = 20) -> dict[str, Any]:
    """How far an engine is from eager torch on an architecture, and whether that is near enough."""
    expected, case = build(name), build(name)
    row: dict[str, Any] = {"name": name, "engine": engine}
    row["parameters"] = sum(each.numel() for each in case.module.parameters())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = time.perf_counter()
        running = ENGINES[engine](case)
        if case.random:
            differences = _compare_draws(expected, case, running, row, began)
        else:
            differences = _compare_once(expected, case, running, row, began)
            differences["losses"] = _compare_losses(expected, case, running, steps)
    row["fell_back"] = sorted(
        {str(each.message) for each in warned if FELL_BACK in str(each.message)}
    )
    return row | {"differences": differences, "equal": all(d["near"] for d in differences.values())}


def _compare_once(
    expected: Case, case: Case, running: Running, row: dict[str, Any], began: float
) -> dict[str, Any]:
    """One forward and backward pass, with gradients of the inputs too."""
    torch.manual_seed(1)
    found = _step(case, running)
    row["first_step_s"] = time.perf_counter() - began
    torch.manual_seed(1)
    right = _step(expected, Running(expected.module, expected.module))
    differences = {group: _worst(right[group], found[group]) for group in right}
    if all(each["near"] for each in differences.values()):
        return differences
    try:
        exact = _exact_step(row["name"])
    except RuntimeError:  # a module that makes tensors of float32 by itself has no float64
        return differences
    return {group: _worst(right[group], found[group], exact[group]) for group in right}


def _exact_step(name: str) -> dict[str, Tensors]:
    """The same step of eager in float64."""
    torch.manual_seed(1)
    case = build(name)
    return _step(case, ENGINES["float64"](case))


def _step(case: Case, running: Running) -> dict[str, Tensors]:
    """The outputs, gradients of parameters and inputs, and buffers of one step."""
    leaves, structure = pytree.tree_flatten((case.args, case.kwargs))
    leaves = [_differentiable(leaf) for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    outputs = running.call(*args, **kwargs)
    case.loss(outputs).backward()
    named = pytree.tree_flatten_with_path(outputs)[0]
    inputs = {str(i): each.grad for i, each in enumerate(leaves) if _has_gradient(each)}
    return {
        "outputs": {pytree.keystr(path): torch.as_tensor(leaf).detach() for path, leaf in named
                    if leaf is not None},
        "gradients": {name: each.grad for name, each in running.module.named_parameters()},
        "input gradients": inputs,
        "buffers": {name: each.clone() for name, each in running.module.named_buffers()},
    }  # fmt: skip


def _differentiable(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.clone().requires_grad_()
    return leaf


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _worst(right: Tensors, found: Tensors, exact: Tensors | None = None) -> dict[str, Any]:
    """The tensor that differs most, and how much; not one that `exact` shows to be rounding."""
    if set(right) != set(found):
        names = sorted(set(right) ^ set(found))
        return {"tensor": f"only on one side: {', '.join(names[:5])}", "error": None, "near": False}
    most = max((_largest(each) for each in right.values()), default=0.0)
    worst: tuple[float, str] = (0.0, "")
    for name, one in right.items():
        other = found[name]
        error = math.inf
        if one is None or other is None:
            error = 0.0 if one is other else math.inf
        elif one.shape == other.shape:
            difference = _distance(one, other)
            scale = _largest(one)
            if scale < NOTHING * most:
                scale = TENTH * most
            error = 0.0 if difference == 0 else difference / scale if scale else math.inf
            if exact is not None and error > TOLERANCE and _is_rounding(one, other, exact[name]):
                continue
        if not error <= worst[0]:  # a NaN, too
            worst = (error, name)
    error, name = worst
    finite = error if math.isfinite(error) else None  # JSON has no infinity
    return {"tensor": name, "error": finite, "near": error <= TOLERANCE}


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return _largest(one.double() - other.double())


def _is_rounding(eager: torch.Tensor, found: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Whether a tensor is about as near to the exact one as eager's."""
    return exact is not None and _distance(found, exact) <= ROUNDING * _distance(eager, exact)


def _largest(tensor: torch.Tensor | None) -> float:
    return float(tensor.double().abs().max()) if tensor is not None and tensor.numel() else 0.0


def _compare_losses(expected: Case, case: Case, running: Running, steps: int) -> dict[str, Any]:
    right = _train(expected, Running(expected.module, expected.module), steps)
    found = _train(case, running, steps)
    errors = [abs(a - b) / abs(a) for a, b in zip(right, found)]
    step = max(range(steps), key=lambda i: errors[i] if errors[i] == errors[i] else math.inf)
    finite = errors[step] if math.isfinite(errors[step]) else None
    near = errors[step] <= LOSS_TOLERANCE
    return {"tensor": f"step {step + 1}", "error": finite, "near": near, "last": found[-1]}


def _train(case: Case, running: Running, steps: int) -> list[float]:
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(running.module.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = case.loss(running.call(*case.args, **case.kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# -- architectures that draw random numbers --------------------------------------------------------


def _compare_draws(
    expected: Case, case: Case, running: Running, row: dict[str, Any], began: float
) -> dict[str, Any]:
    """The losses and the sizes of the gradients of many draws must have the same mean."""
    _draw(case, running)
    row["first_step_s"] = time.perf_counter() - began
    eager = Running(expected.module, expected.module)
    right = [_draw(expected, eager) for _ in range(DRAWS)]
    found = [_draw(case, running) for _ in range(DRAWS)]
    return {
        "losses": _same_mean([loss for loss, _ in right], [loss for loss, _ in found]),
        "gradients": _same_mean([size for _, size in right], [size for _, size in found]),
    }


def _draw(case: Case, running: Running) -> tuple[float, float]:
    """The loss and the norm of the gradient of one draw."""
    running.module.zero_grad()
    loss = case.loss(running.call(*case.args, **case.kwargs))
    loss.backward()
    gradients = [each.grad for each in running.module.parameters() if each.grad is not None]
    return loss.item(), float(torch.nn.utils.get_total_norm(gradients))


def _same_mean(right: list[float], found: list[float]) -> dict[str, Any]:
    spread = math.hypot(statistics.stdev(right), statistics.stdev(found)) / math.sqrt(len(right))
    distance = abs(statistics.fmean(right) - statistics.fmean(found)) / spread
    near = distance <= STANDARD_ERRORS and statistics.stdev(found) > 0
    return {"tensor": f"{distance:.1f} standard errors", "error": None, "near": near}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(compare(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
