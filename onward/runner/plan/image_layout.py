"""The layout of an image input, from its sizes: channels first or last."""

from __future__ import annotations

from onward.errors import OptionError
from onward.message_text import format_sizes
from onward.runner.plan.model_shapes import TensorPort

_CHANNELS = (3, 1, 4)  # of images, the likeliest first


def image_sizes(port: TensorPort) -> tuple[int, int | None, int | None, bool]:
    """(channels, height, width, whether channels are last) of an input of rank 4.

    >>> image_sizes(TensorPort("image", "float32", (None, 3, 32, 32)))
    (3, 32, 32, False)
    >>> image_sizes(TensorPort("image", "float32", (None, 32, 32, 1)))
    (1, 32, 32, True)
    """
    first, second, last = port.shape[1:]
    if _rank(last) < _rank(first):
        return int(last or 3), first, second, True
    if first is not None and first not in _CHANNELS:
        raise OptionError(
            f"the model's input {port.name!r} has the shape ({format_sizes(port.shape)}): neither "
            "axis 1 nor the last has 1, 3 or 4 channels, as images do\n"
            "give arrays of its shape, such as an .npz file"
        )
    return first or 3, second, last, False


def _rank(size: int | None) -> int:
    """How unlikely an axis is the channels."""
    return _CHANNELS.index(size) if size in _CHANNELS else len(_CHANNELS)
