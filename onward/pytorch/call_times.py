"""Measure a call of a module: on the graphs of a program, and in PyTorch.

Neither changes the module: parameters get no gradients, buffers are copies, the random generator is
restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onward.pytorch.call_structure import flatten
from onward.pytorch.captured_program import CapturedProgram

Tensor = torch.Tensor
_REPEATS = 4  # the first one is not counted


def program_seconds(
    program: CapturedProgram, tensors: Mapping[str, Tensor], call: Sequence[Tensor]
) -> float:
    """Seconds of a forward and a backward pass on the program's graphs."""
    return _fastest(lambda: program.run_for_timing(tensors, call))


def torch_seconds(
    module: nn.Module, tensors: Mapping[str, Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> float:
    """Seconds of a forward and a backward pass in PyTorch."""
    copies = {id(tensor): _copy(tensor) for tensor in tensors.values()}  # tied ones stay tied
    state = {name: copies[id(tensor)] for name, tensor in tensors.items()}
    found, structure = flatten((tuple(args), dict(kwargs)))
    call = [_copy(tensor) if tensor.requires_grad else tensor for tensor in found]
    wrt = [each for each in (*copies.values(), *call) if each.requires_grad]

    def run() -> None:
        given, named = structure.rebuild(call)
        results, _ = flatten(torch.func.functional_call(module, state, given, named))
        outputs = [each for each in results if each.requires_grad]
        scalars = [each for each in outputs if not each.ndim] or outputs
        if scalars and wrt:
            ones = [torch.ones_like(each) for each in scalars]
            torch.autograd.grad(scalars, wrt, ones, allow_unused=True)

    return _fastest(run)


def _copy(tensor: Tensor) -> Tensor:
    """A parameter without its gradient; a buffer as a copy, which may be changed in place."""
    if tensor.requires_grad:
        return tensor.detach().requires_grad_()
    return tensor.detach().clone()


def _fastest(run: Callable[[], object]) -> float:
    seconds = []
    with torch.random.fork_rng():
        for _ in range(_REPEATS):
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
