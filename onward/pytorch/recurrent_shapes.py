"""Shapes of recurrent layers without the loop over time, while a module is traced.

To find an LSTM's output shapes, PyTorch runs the layer on tensors without data, step by step: a
trace of 64 steps took 20 seconds, and was valid for that length only. The operator itself stays in
the trace as it is, and is translated to ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextmanager
def recurrent_shapes() -> Iterator[None]:
    """While entered, recurrent layers of tensors without data give results of the right shapes."""
    replaced: list[tuple[dict[Any, Any], Any, Any]] = []
    for name in _LAYERS:
        operator = getattr(torch.ops.aten, name).input
        places = [(operator.py_kernels, key) for key in list(operator.py_kernels)]
        places += [(decomposition_table, operator)] if operator in decomposition_table else []
        for table, key in places:
            replaced.append((table, key, table[key]))
            table[key] = _shapes_only(table[key])
    try:
        yield
    finally:
        for table, key, kernel in replaced:
            table[key] = kernel


def _shapes_only(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, or empty results where only their shapes count."""

    def run(x: Tensor, state: Any, params: Sequence[Tensor], *settings: Any) -> Any:
        if not isinstance(x, FakeTensor) or get_proxy_mode() is not None:
            return kernel(x, state, params, *settings)
        states = state if isinstance(state, (list, tuple)) else [state]
        *_, is_bidirectional, _ = settings
        width = states[0].shape[-1] * (2 if is_bidirectional else 1)
        inputs = [x, *states, *params]
        result = _like(x, [*x.shape[:-1], width], inputs)
        return result, *(_like(x, each.shape, inputs) for each in states)

    return run


def _like(x: Tensor, shape: Sequence[Any], inputs: Sequence[Tensor]) -> Tensor:
    """A tensor without data that needs a gradient if an input does."""
    made = x.new_empty(shape)
    needs = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    return made.requires_grad_() if needs else made
