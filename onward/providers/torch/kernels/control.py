"""Control flow: subgraphs are Python functions, so Python branches and loops."""

from __future__ import annotations

from typing import Any

import torch

from onward.graph.table import OpTable
from onward.providers.torch.types import Body, Branch, Int, Ints, Tensor, torch_dtype

kernel = OpTable()

Shape = list[int | None] | None  # None where it is not known


@kernel("If")
def if_(condition: Int, *, then_branch: Branch, else_branch: Branch) -> tuple[Any, ...]:
    return then_branch() if condition else else_branch()


@kernel("Loop")
def loop(
    trips: Int | None = None,
    condition: Int | None = None,
    *state: Tensor,
    body: Body,
    output_types: Ints,
    output_shapes: list[Shape],
    device: torch.device,
) -> tuple[Any, ...]:
    """state, scanned = body(i, condition, state), while the condition holds and i < trips.

    Without `condition` what the body says of it is not heard. Returns the last state, then each
    scanned value stacked over the iterations.
    """
    carried: list[Any] = list(state)
    scanned: list[list[Tensor]] = [[] for _ in output_types[len(state) :]]
    going, i = condition is None or condition, 0
    while going and (trips is None or i < trips):
        going, *values = body(i, going, *carried)
        going = condition is None or going
        carried = values[: len(state)]
        for elements, element in zip(scanned, values[len(state) :]):
            elements.append(element)
        i += 1
    kinds = list(zip(output_types, output_shapes, strict=True))[len(state) :]
    return (
        *carried,
        *(_stacked(elements, 0, *kind, device) for elements, kind in zip(scanned, kinds)),
    )


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

    A direction of 1 reads an input, or writes an output, from the end.
    """
    count = len(inputs) - num_scan_inputs
    state: list[Any] = list(inputs[:count])
    axes = scan_input_axes or [0] * num_scan_inputs
    directions = scan_input_directions or [0] * num_scan_inputs
    elements = [
        x.unbind(axis)[:: -1 if backward else 1]
        for x, axis, backward in zip(inputs[count:], axes, directions, strict=True)
    ]
    scanned: list[list[Tensor]] = [[] for _ in output_types[count:]]
    for xs in zip(*elements, strict=True):
        values = body(*state, *xs)
        state = list(values[:count])
        for ys, y in zip(scanned, values[count:]):
            ys.append(y)
    axes = scan_output_axes or [0] * len(scanned)
    directions = scan_output_directions or [0] * len(scanned)
    kinds = list(zip(output_types, output_shapes, strict=True))[count:]
    return (
        *state,
        *(
            _stacked(ys[:: -1 if backward else 1], axis, *kind, device)
            for ys, axis, backward, kind in zip(scanned, axes, directions, kinds)
        ),
    )


def _stacked(
    elements: list[Tensor], axis: int, onnx_type: int, shape: Shape, device: torch.device
) -> Tensor:
    """The elements along a new axis; without any, a tensor of no elements, of the known shape."""
    if elements:
        return torch.stack(elements, axis)
    sizes = [size or 0 for size in shape or [0]]
    sizes[axis] = 0
    return torch.empty(sizes, dtype=torch_dtype(onnx_type or 1), device=device)
