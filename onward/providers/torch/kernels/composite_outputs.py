"""Outputs of gradient kernels: which gradients are used, and their order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.providers.torch.dtypes import Ints, Tensor


def wanted_of(wrt: Ints, wanted: list[bool], inputs: int) -> list[bool]:
    """For each input of the forward node, whether its gradient is wanted."""
    needed = {i for i, is_wanted in zip(wrt, wanted) if is_wanted}
    return [i in needed for i in range(inputs)]


def in_order(gradients: Sequence[Tensor | None], wrt: Ints) -> tuple[Tensor | None, ...]:
    """Gradients by input of the forward node, in the order of the call's outputs."""
    return tuple(gradients[i] for i in wrt)


def requested_gradients(call: ir.Node) -> dict[int, ir.Value]:
    """The inputs of the forward node whose gradients are used outputs of a call."""
    wrt = call.attributes.get_ints("wrt") or ()
    read = (value.uses() or value.is_graph_output() for value in call.outputs)
    return {i: value for i, value, is_read in zip(wrt, call.outputs, read) if is_read}


def are_absent(call: ir.Node, *places: int) -> bool:
    """Whether a call has none of these inputs."""
    return all(place >= len(call.inputs) or call.inputs[place] is None for place in places)


def sizes_of(value: ir.Value | None) -> list[int] | None:
    """A value's sizes if all are known, else None."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return list(value.shape.numpy())
