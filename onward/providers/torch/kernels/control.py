"""If, Loop and Scan: subgraphs are Python functions, Python branches and loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Branch, Int, Ints, LoopBody, Tensor, torch_dtype

kernel = OpTable()
_AT_ONCE = 1 << 14  # slices that are made together: one by one costs more

Shape = list[int | None] | None  # as far as it is known


@kernel("If")
def if_(condition: Int, *, then_branch: Branch, else_branch: Branch) -> tuple[Any, ...]:
    return then_branch() if condition else else_branch()


@kernel("Loop")
def loop(
    trips: Int | None = None,
    condition: Int | None = None,
    *state: Tensor,
    body: LoopBody,
    output_types: Ints,
    output_shapes: list[Shape],
    device: torch.device,
) -> tuple[Any, ...]:
    """condition, state, y[i] = body(i, condition, state) while condition and i < trips.

    Returns the last state, then y. Without `condition`, the body's condition is ignored.
    """
    n = len(state)
    carried: Sequence[Any] = state
    rows: list[Sequence[Tensor]] = []
    going, i = condition is None or condition, 0
    while going and (trips is None or i < trips):
        going, *values = body(i, going, *carried)
        going = condition is None or going
        carried = values[:n]
        rows.append(values[n:])
        i += 1
    return (*carried, *_stacked(rows, output_types[n:], output_shapes[n:], device))


@kernel("Scan")
def scan(
    *inputs: Tensor,
    body: Branch,
    num_scan_inputs: int,
    scan_input_axes: Ints | None = None,
    scan_input_directions: Ints | None = None,
    scan_output_axes: Ints | None = None,
    scan_output_directions: Ints | None = None,
    output_types: Ints,
    output_shapes: list[Shape],
    device: torch.device,
) -> tuple[Any, ...]:
    """state, y[t] = body(state, x[t]) for each t, at each input's and output's own axis.

    Returns the last state, then y. A direction of 1 reads x, or writes y, from its end.
    """
    n = len(inputs) - num_scan_inputs
    axes = scan_input_axes or [0] * num_scan_inputs
    directions = scan_input_directions or [0] * num_scan_inputs
    columns = [
        _slices(x, axis, bool(backward))
        for x, axis, backward in zip(inputs[n:], axes, directions, strict=True)
    ]
    state: Sequence[Any] = inputs[:n]
    rows: list[Sequence[Tensor]] = []
    for xs in zip(*columns, strict=True):
        values = body(*state, *xs)
        state = values[:n]
        rows.append(values[n:])
    kinds = (output_types[n:], output_shapes[n:], device)
    return (*state, *_stacked(rows, *kinds, scan_output_axes, scan_output_directions))


def _slices(x: Tensor, axis: int, backward: bool) -> Iterable[Tensor]:
    """x[t] for each t; of a long axis in chunks, so that a run can be stopped in between."""
    length = x.shape[axis]
    if length <= _AT_ONCE:
        return x.unbind(axis)[:: -1 if backward else 1]
    starts = range(0, length, _AT_ONCE)
    blocks = (
        x.narrow(axis, t, min(_AT_ONCE, length - t)) for t in starts[:: -1 if backward else 1]
    )
    return (step for block in blocks for step in _slices(block, axis, backward))


def _stacked(
    rows: list[Sequence[Tensor]],
    types: Ints,
    shapes: list[Shape],
    device: torch.device,
    axes: Ints | None = None,
    directions: Ints | None = None,
) -> list[Tensor]:
    """The results of all iterations, stacked at a new axis; an empty tensor if there are none."""
    axes = axes or [0] * len(types)
    directions = directions or [0] * len(types)
    ys = []
    for k, (axis, backward) in enumerate(zip(axes, directions)):
        elements = [row[k] for row in rows]
        if elements:
            ys.append(torch.stack(elements[::-1] if backward else elements, axis))
            continue
        sizes = [size or 0 for size in shapes[k] or [0]]
        sizes[axis] = 0
        ys.append(torch.empty(sizes, dtype=torch_dtype(types[k] or 1), device=device))
    return ys
