"""LSTM, GRU and RNN.

torch's fused kernels (cuDNN's on CUDA) run the standard layers, also over sequences of different
lengths; other activations, a clip or peepholes run step by step. To Inductor either is one opaque
operator: unrolled over time, it would take too long to compile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.defect import ARM, architecture
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.empty_tensors import empty_from
from onward.providers.torch.kernels.half_precision import float32_on_cpu
from onward.providers.torch.kernels.prepared_weights import prepared, without_weight_cache
from onward.providers.torch.kernels.recurrent_steps import (
    activations_of,
    clipped,
    each_direction,
    run_over_time,
)

kernel = OpTable()
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_ON_ARM = architecture() == ARM
_OPEN = 1e4  # what a sigmoid takes to be exactly one, in any float type
# torch's fused layers: the index of each gate in ONNX's order, and cuDNN's number of the layer
_GATES = {
    torch.lstm: (0, 2, 3, 1),
    torch.gru: (1, 0, 2),
    torch.rnn_tanh: (0,),
    torch.rnn_relu: (0,),
}
_CUDNN = {torch.lstm: 2, torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 0}


def _opaque(schema: str, states: int) -> Callable[[Kernel], Kernel]:
    """Make a kernel one opaque operator to a compiler, which knows only its results' shapes."""

    def like(x: Tensor, w: Tensor, r: Tensor, *_: Any, layout: int, **__: Any) -> list[Tensor]:
        directions, hidden = r.shape[0], r.shape[2]
        if layout:
            shapes = [(*x.shape[:2], directions, hidden), (x.shape[0], directions, hidden)]
        else:
            shapes = [
                (x.shape[0], directions, x.shape[1], hidden),
                (directions, x.shape[1], hidden),
            ]
        return [x.new_empty(shape) for shape in [*shapes, shapes[1]][: 1 + states]]

    def decorate(function: Kernel) -> Kernel:
        def compute(x: Tensor, *inputs: Any, **attributes: Any) -> list[Tensor]:
            with without_weight_cache() if x.is_cuda else nullcontext():
                return [y.contiguous() for y in function(x, *inputs, **attributes)]

        operator = torch.library.custom_op(
            f"onward::{function.__name__}", compute, mutates_args=(), schema=schema
        )
        operator.register_fake(like)

        @functools.wraps(function)
        def run(*inputs: Any, **attributes: Any) -> Any:
            if torch.compiler.is_compiling():
                return tuple(operator(*inputs, **attributes))
            return function(*inputs, **attributes)

        return cast(Kernel, run)

    return decorate


_INPUTS = (
    "(Tensor x, Tensor w, Tensor r, Tensor? b=None, Tensor? sequence_lens=None, "
    "Tensor? initial_h=None, "
)
_ATTRIBUTES = (
    "*, float[]? activation_alpha=None, float[]? activation_beta=None, str[]? activations=None, "
    "float? clip=None, str direction, int? hidden_size=None, int layout"
)


@kernel("LSTM")
@float32_on_cpu
@_opaque(
    f"{_INPUTS} Tensor? initial_c=None, Tensor? p=None, {_ATTRIBUTES}, int input_forget"
    ") -> Tensor[]",
    states=2,
)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str,
    hidden_size: int | None = None,
    input_forget: int,
    layout: int,
) -> tuple[Tensor, ...]:
    """Step: i, f, o = f(x W^T + h R^T + p c + b);  c' = f c + i g(...);  h' = o h(c')."""
    x, states = _to_time_major(x, r, (initial_h, initial_c), layout)
    plain = ["Sigmoid", "Tanh", "Tanh"] * r.shape[0]
    names = activations or plain
    if names == plain and clip is None and p is None and not input_forget:
        compute = _default_lstm if _steps_are_faster(x) else _fused_lstm
        return _from_time_major(compute(x, sequence_lens, states, w, r, b, direction), layout)
    functions = activations_of(names, activation_alpha, activation_beta)

    def run(d: int, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        f, g, h = functions[3 * d : 3 * d + 3]
        f, g = clipped(f, clip), clipped(g, clip)  # h is not, as in onnxruntime
        peep = (0.0, 0.0, 0.0) if p is None else p[d].chunk(3)

        def step(gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            i, o, keep, c = (gates + hidden @ r[d].T).chunk(4, -1)
            i = f(i + peep[0] * cell)
            keep = 1 - i if input_forget else f(keep + peep[2] * cell)
            cell = keep * cell + i * g(c)
            return f(o + peep[1] * cell) * h(cell), cell

        bias = None if b is None else b[d].view(2, -1).sum(0)
        return run_over_time(step, F.linear(x, w[d], bias), sequence_lens, *states)

    return _from_time_major(each_direction(run, x, sequence_lens, states, direction), layout)


def _steps_are_faster(x: Tensor) -> bool:
    """Whether single steps are faster than torch's LSTM: for one step, and on ARM.

    They write in place, which autograd does not allow.
    """
    return x.is_cpu and (_ON_ARM or x.shape[0] == 1) and not torch.is_grad_enabled()


def _default_lstm(
    x: Tensor,
    lengths: Tensor | None,
    states: Sequence[Tensor],
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    direction: str,
) -> list[Tensor]:
    """The LSTM with default activations in few operators; ONNX's sigmoid gates are adjacent."""
    r_t, size = _transposed(r), r.shape[2]

    def run(d: int, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        def step(gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            gates = torch.addmm(gates, hidden, r_t[d])
            i, o, f = gates.narrow(1, 0, 3 * size).sigmoid_().chunk(3, 1)
            cell = torch.addcmul(f * cell, i, gates.narrow(1, 3 * size, size).tanh_())
            return o * cell.tanh(), cell

        bias = None if b is None else b[d].view(2, -1).sum(0)
        return run_over_time(step, F.linear(x, w[d], bias), lengths, *states)

    return each_direction(run, x, lengths, states, direction)


@prepared
def _transposed(r: Tensor) -> Tensor:
    return r.mT.contiguous()


@kernel("GRU")
@float32_on_cpu
@_opaque(f"{_INPUTS} {_ATTRIBUTES}, int linear_before_reset) -> Tensor[]", states=1)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str,
    hidden_size: int | None = None,
    layout: int,
    linear_before_reset: int,
) -> tuple[Tensor, ...]:
    """Step: z, r = f(x W^T + h R^T + b);  n = g(x W^T + (r h) R^T + b);  h' = (1 - z) n + z h."""
    x, states = _to_time_major(x, r, (initial_h,), layout)
    plain = ["Sigmoid", "Tanh"] * r.shape[0]
    names = activations or plain
    if names == plain and clip is None and linear_before_reset:
        return _from_time_major(
            _fused(torch.gru, x, sequence_lens, states, w, r, b, direction), layout
        )
    functions = activations_of(names, activation_alpha, activation_beta)
    sizes = (2 * r.shape[2], r.shape[2])

    def run(d: int, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        f, g = [clipped(function, clip) for function in functions[2 * d : 2 * d + 2]]
        gates_r, new_r = r[d].split_with_sizes(sizes)
        x_bias, h_bias = (None, None) if b is None else b[d].chunk(2)
        gates_b, new_b = (None, None) if h_bias is None else h_bias.split_with_sizes(sizes)

        def step(gates: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
            gates, new = gates.split_with_sizes(sizes, -1)
            update, reset = f(gates + F.linear(hidden, gates_r, gates_b)).chunk(2, -1)
            if linear_before_reset:
                new = g(new + reset * F.linear(hidden, new_r, new_b))
            else:
                new = g(new + F.linear(reset * hidden, new_r, new_b))
            return ((1 - update) * new + update * hidden,)

        return run_over_time(step, F.linear(x, w[d], x_bias), sequence_lens, *states)

    return _from_time_major(each_direction(run, x, sequence_lens, states, direction), layout)


@kernel("RNN")
@float32_on_cpu
@_opaque(f"{_INPUTS} {_ATTRIBUTES}) -> Tensor[]", states=1)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str,
    hidden_size: int | None = None,
    layout: int,
) -> tuple[Tensor, ...]:
    """Step: h' = f(x W^T + h R^T + b)."""
    x, states = _to_time_major(x, r, (initial_h,), layout)
    names = (activations or ["Tanh", "Tanh"])[: r.shape[0]]
    fused = {"Tanh": torch.rnn_tanh, "Relu": torch.rnn_relu}.get(names[0])
    if fused is not None and len(set(names)) == 1 and clip is None:
        return _from_time_major(_fused(fused, x, sequence_lens, states, w, r, b, direction), layout)
    functions = activations_of(names, activation_alpha, activation_beta)

    def run(d: int, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        f = clipped(functions[d], clip)

        def step(gates: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
            return (f(gates + hidden @ r[d].T),)

        bias = None if b is None else b[d].view(2, -1).sum(0)
        return run_over_time(step, F.linear(x, w[d], bias), sequence_lens, *states)

    return _from_time_major(each_direction(run, x, sequence_lens, states, direction), layout)


def _to_time_major(
    x: Tensor, r: Tensor, states: Sequence[Tensor | None], layout: int
) -> tuple[Tensor, list[Tensor]]:
    """The input as (time, batch, size), the states as (directions, batch, hidden), or zero."""
    x = x.transpose(0, 1) if layout else x
    zero = x.new_zeros(r.shape[0], x.shape[1], r.shape[2])
    given = [s.transpose(0, 1) if layout and s is not None else s for s in states]
    return x, [zero if s is None else s for s in given]


def _from_time_major(results: Sequence[Tensor], layout: int) -> tuple[Tensor, ...]:
    """(time, directions, batch, hidden) and the states, in the node's layout."""
    y, *states = results
    if not layout:
        return tuple(results)
    return y.permute(2, 0, 1, 3), *[state.transpose(0, 1) for state in states]


def _fused(
    function: Any,
    x: Tensor,
    lengths: Tensor | None,
    states: Sequence[Tensor],
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    direction: str,
) -> list[Tensor]:
    """The layer by torch's fused kernel; y is (time, directions, batch, hidden)."""
    if not x.shape[0] or not x.shape[1]:
        return _empty_result(x, lengths, states, direction)
    groups = _fused_weights(w, r, b, function, lengths is not None)
    if lengths is None and direction != "reverse":
        y, *last = _call(function, x, states, groups[0])
        y = torch.unflatten(y, 2, (r.shape[0], -1)).transpose(1, 2)
        return [y, *last]
    past = None
    if lengths is not None:
        past = (torch.arange(x.shape[0], device=x.device).unsqueeze(1) >= lengths).unsqueeze(-1)

    def run(d: int, x: Tensor, *states: Tensor) -> list[Tensor]:
        if past is not None and function is torch.lstm:
            x = torch.cat((x, past.to(x.dtype)), -1)
        y, *last = _call(function, x, [s.unsqueeze(0) for s in states], groups[d])
        last = [state.squeeze(0) for state in last]
        if past is not None and lengths is not None:
            y = y.masked_fill(past, 0)
            ends = (lengths.long() - 1).clamp(min=0).view(1, -1, 1).expand(1, *y.shape[1:])
            last[0] = y.gather(0, ends).squeeze(0)
        return [y, *last]

    return each_direction(run, x, lengths, states, direction)


def _empty_result(
    x: Tensor, lengths: Tensor | None, states: Sequence[Tensor], direction: str
) -> list[Tensor]:
    """The result of a layer without steps or sequences, which torch refuses on some processors."""

    def run(d: int, x: Tensor, *states: Tensor) -> list[Tensor]:
        return [empty_from(x, [x.shape[0], *states[0].shape]), *states]

    return each_direction(run, x, lengths, states, direction)


_fused_lstm = functools.partial(_fused, torch.lstm)


def _call(
    function: Any, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    states = [state.contiguous() for state in states]  # cuDNN refuses others
    state = tuple(states) if function is torch.lstm else states[0]
    both, biased = states[0].shape[0] == 2, len(weights) // states[0].shape[0] == 4
    result: tuple[Tensor, ...] = function(x, state, weights, biased, 1, 0.0, False, both, False)
    return result


@prepared
def _fused_weights(
    w: Tensor, r: Tensor, b: Tensor | None, function: Any, padded: bool
) -> list[list[Tensor]]:
    """The weights in torch's order: one list, or one for each direction where batches are padded.

    An LSTM's cell must not change in the padding. There x has one more column of ones, whose
    weights close the input gate and open the forget gate.
    """
    order = _GATES[function]
    if padded and function is torch.lstm:
        i, o, f, c = w.new_zeros(w.shape[0], w.shape[1], 1).chunk(4, 1)
        w = torch.cat((w, torch.cat((i - _OPEN, o, f + _OPEN, c), 1)), 2)
    kinds = [w, r] if b is None else [w, r, *b.chunk(2, 1)]
    gates = [kind.chunk(len(order), 1) for kind in kinds]
    ordered = [torch.cat([gate[g] for g in order], 1) for gate in gates]
    groups = [[kind[d] for kind in ordered] for d in range(r.shape[0])]
    if not padded and len(groups) == 2:
        groups = [groups[0] + groups[1]]
    if w.is_cuda:
        for group in groups:
            _make_one_block(group, function, len(kinds))
    return groups


def _make_one_block(weights: list[Tensor], function: Any, kinds: int) -> None:
    """Move a layer's weights into one block of memory, as cuDNN requires."""
    if torch.backends.cudnn.is_acceptable(weights[0]):  # type: ignore[no-untyped-call]
        torch._cudnn_rnn_flatten_weight(
            weights,
            kinds,
            weights[0].shape[1],
            _CUDNN[function],
            weights[1].shape[1],
            0,
            1,
            False,
            len(weights) > kinds,
        )
