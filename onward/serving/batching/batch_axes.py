"""Find the batch axis of each input and output of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from onward.errors import OptionError
from onward.message_text import format_sizes, suggest_names
from onward.serving.requests import TensorSpec


def find_batch_axes(
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    given: Mapping[str, int],
    fixed_sizes: Collection[int] = (),
) -> dict[str, int] | str:
    """The batch axis of each input and output by name, or the reason why there is none.

    `given` is the axis of tensors where it is not the first. An axis must be free, or have the one
    size that all batches are filled up to.
    """
    inputs, outputs = list(inputs), list(outputs)
    names = [spec.name for spec in (*inputs, *outputs)]
    for name in given:
        if name not in names:
            hint = suggest_names(name, names, "the model has")
            raise OptionError(f"batch_axes names {name!r}, which is not an input or output\n{hint}")
    inputs = [spec for spec in inputs if not spec.has_default]  # for all rows alike
    if not inputs:
        return "it has no inputs"
    axes: dict[str, int] = {}
    for what, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            axis = given.get(spec.name, 0)
            rank = len(spec.shape)
            if not rank and spec.name in given:  # its rank is not known
                axes[spec.name] = axis
                continue
            if not -rank <= axis < rank:
                return f"{what} {spec.name!r} has the shape [{format_sizes(spec.shape)}]" + (
                    f": no axis {axis}" if rank else ": no batch axis"
                )
            size = spec.shape[axis]
            if size != -1 and list(fixed_sizes) != [size]:
                return f"axis {axis} of {what} {spec.name!r} has the fixed size {size}"
            axes[spec.name] = axis % rank
    return axes
