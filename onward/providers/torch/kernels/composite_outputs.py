"""What kernels of whole gradients share: which gradients are wanted, and in which order they go."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.providers.torch.dtypes import Ints, Tensor


def wanted_of(wrt: Ints, wanted: list[bool], inputs: int) -> list[bool]:
    """Of each input of the forward node, whether its gradient is wanted."""
    needed = {i for i, is_wanted in zip(wrt, wanted) if is_wanted}
    return [i in needed for i in range(inputs)]


def in_order(gradients: Sequence[Tensor | None], wrt: Ints) -> tuple[Tensor | None, ...]:
    """The gradients of a forward node's inputs as the outputs of its call."""
    return tuple(gradients[i] for i in wrt)


def gradients_asked(call: ir.Node) -> dict[int, ir.Value]:
    """Which inputs of the forward node a call gives gradients of that somebody reads."""
    wrt = call.attributes.get_ints("wrt") or ()
    read = (value.uses() or value.is_graph_output() for value in call.outputs)
    return {i: value for i, value, is_read in zip(wrt, call.outputs, read) if is_read}


def is_absent(call: ir.Node, *places: int) -> bool:
    """Whether a call is not given any of these inputs."""
    return all(place >= len(call.inputs) or call.inputs[place] is None for place in places)


def sizes_of(value: ir.Value | None) -> list[int] | None:
    """A value's sizes where all are known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return list(value.shape.numpy())
