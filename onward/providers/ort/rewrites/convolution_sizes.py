"""The sizes of convolutions and of their gradients, for the rules that choose a form for them."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onward.passes.value_facts import attribute, dims, input_of


class ConvolutionSizes(NamedTuple):
    """The sizes of a Conv, or of the Conv whose gradient a ConvTranspose is; the batch may vary."""

    channels: int  # of the weights' second axis
    outputs: int  # of the weights' first axis
    image: tuple[int, int]
    windows: tuple[int, int]
    kernel: tuple[int, int]

    @property
    def window_count(self) -> int:
        return self.windows[0] * self.windows[1]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]


def convolution_sizes(
    node: ir.Node, image: ir.Value | None, windows: ir.Value | None
) -> ConvolutionSizes | None:
    """The sizes of a convolution of float32 images, if they are known, else None."""
    shapes = dims(image), dims(windows), dims(node.inputs[1])
    if image is None or image.dtype != ir.DataType.FLOAT or None in shapes:
        return None
    known = [[n for n in shape[1:] if isinstance(n, int)] for shape in shapes if shape is not None]
    first = (shapes[2] or (None,))[0]
    if [len(each) for each in known] != [3, 3, 3] or not isinstance(first, int):
        return None
    if attribute(node, "group", 1) != 1 or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    (channels, *kernel), at, positions = known[2], known[0][1:], known[1][1:]
    if min((*kernel, *at, *positions, channels, first)) < 1:
        return None
    return ConvolutionSizes(
        channels, first, (at[0], at[1]), (positions[0], positions[1]), (kernel[0], kernel[1])
    )


def is_gradient(node: ir.Node) -> bool:
    """Whether a ConvTranspose has no bias, dilation or given shape, as the gradient of a Conv."""
    return (
        pair(node, "dilations") == (1, 1)
        and input_of(node, 2) is None
        and attribute(node, "output_shape") is None
    )


def pair(node: ir.Node, name: str) -> tuple[int, ...]:
    """An attribute with a number for each axis, all 1 by default."""
    return tuple(attribute(node, name, (1, 1)))
