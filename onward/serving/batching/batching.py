"""Decide how a model's requests are joined, by its settings, its shapes and a check of answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.serving.batching.batch import BatchLayout, MaskInput, PaddedInput
from onward.serving.batching.batch_axes import find_batch_axes
from onward.serving.batching.batch_check import NotRunnable, find_changed_answer
from onward.serving.instance import Instance
from onward.serving.requests import TensorSpec
from onward.serving.settings import ModelSettings, Padding
from onward.serving.tensor_data import DATATYPES

AUTO_MAX_BATCH_SIZE = 32
NO_LAYOUT = BatchLayout({})


@dataclass(frozen=True, slots=True)
class Batching:
    """How the requests of a model are joined; `reason` says why they are not."""

    max_size: int = 0  # rows of a batch; 0: requests have no batch axis, and are not joined
    layout: BatchLayout = NO_LAYOUT
    reason: str = ""
    is_checked: bool = False  # batched answers were equal to single ones when it was loaded
    limits_requests: bool = True  # requests of more rows are refused, not only run alone

    def __str__(self) -> str:
        return f"up to {self.max_size} rows" if self.max_size else f"none: {self.reason}"

    @property
    def axes(self) -> Mapping[str, int]:
        """The batch axis of each input and output."""
        return self.layout.axes


def plan_batching(name: str, instance: Instance, settings: ModelSettings) -> Batching:
    """How requests are joined. Runs the model to check it; OptionError: the settings ask too much.

    "auto" joins if it can be shown that answers stay the same, and else keeps the reason.
    """
    size = settings.max_batch_size
    if size == 0:
        return Batching(reason="max_batch_size is 0")
    sizes = tuple(sorted(set(settings.padded_batch_sizes)))
    axes = find_batch_axes(instance.inputs, instance.outputs, settings.batch_axes, sizes)
    if isinstance(axes, str):
        if size == "auto":
            return Batching(reason=axes)
        raise OptionError(
            f"model {name!r} cannot be batched: {axes}\n"
            "set max_batch_size to 0, or name the axes in batch_axes"
        )
    plan = _plan(name, instance, settings, axes, sizes)
    if plan.max_size == 1 or not settings.check_batching:
        return plan
    try:
        reason = find_changed_answer(instance, plan.layout, plan.max_size)
    except NotRunnable as error:
        return Batching(reason=str(error)) if size == "auto" else plan
    if not reason:
        return replace(plan, is_checked=True)
    if size == "auto" and not settings.padding:
        return Batching(reason=reason)
    advice = "name the outputs to cut back in padding's outputs, " if settings.padding else ""
    raise OptionError(
        f"model {name!r} cannot be batched: {reason}\n"
        f"{advice}set max_batch_size to 0 and give no padding, "
        "or check_batching to false to accept it"
    )


def _plan(
    name: str,
    instance: Instance,
    settings: ModelSettings,
    axes: dict[str, int],
    sizes: tuple[int, ...],
) -> Batching:
    size = settings.max_batch_size
    limit = size if size != "auto" else (sizes[-1] if sizes else AUTO_MAX_BATCH_SIZE)
    if sizes:
        sizes = (*(each for each in sizes if each < limit), limit)
    padded, cuts, masks = _plan_padding(name, instance, settings.padding, axes)
    ready = {each for each, kind in settings.sequence_controls.items() if kind == "ready"}
    layout = BatchLayout(axes, sizes, padded, cuts, masks, frozenset(ready))
    return Batching(limit, layout, "", False, size != "auto" or bool(sizes))


def _plan_padding(
    name: str, instance: Instance, padding: Mapping[str, Padding], axes: Mapping[str, int]
) -> tuple[dict[str, PaddedInput], dict[str, tuple[int, str]], dict[str, MaskInput]]:
    """What is padded, what is cut back, and the masks that the server fills."""
    inputs = {spec.name: spec for spec in instance.inputs}
    padded: dict[str, PaddedInput] = {}
    cuts: dict[str, tuple[int, str]] = {}
    masks: dict[str, MaskInput] = {}
    for each, setting in padding.items():
        spec = _known(each, inputs, name)
        sizes = tuple(sorted(set(setting.sizes)))
        axis = _length_axis(spec, setting.axis, axes)
        padded[each] = PaddedInput(axis, setting.value, sizes)
        outputs = setting.outputs
        if outputs is None:
            outputs = _outputs_of_length(spec, axis, instance.outputs)
        for output, output_axis in outputs.items():
            found = _known(output, {spec.name: spec for spec in instance.outputs}, name)
            cuts[output] = (_length_axis(found, output_axis, axes), each)
        if setting.mask is not None:
            mask = _known(setting.mask, inputs, name)
            masks[mask.name] = MaskInput(each, DATATYPES[mask.datatype], len(mask.shape))
            same = len(mask.shape) == len(spec.shape)
            if not same and len(mask.shape) != 2:
                raise OptionError(
                    f"the mask {mask.name!r} of input {each!r} has {len(mask.shape)} axes\n"
                    "a mask has two, batch and length, or those of its input"
                )
            padded[mask.name] = PaddedInput(axis if same else 1 - axes[mask.name], 0, sizes)
    return padded, cuts, masks


def _outputs_of_length(
    spec: TensorSpec, axis: int, outputs: Sequence[TensorSpec]
) -> dict[str, int]:
    """The outputs that have the named axis of an input, and where."""
    name = spec.axes[axis] if axis < len(spec.axes) else ""
    return {each.name: each.axes.index(name) for each in outputs if name and name in each.axes}


def _known(name: str, specs: Mapping[str, TensorSpec], model: str) -> TensorSpec:
    if name not in specs:
        hint = suggest_names(name, specs, "the model has")
        raise OptionError(f"the padding of model {model!r} names {name!r}\n{hint}")
    return specs[name]


def _length_axis(spec: TensorSpec, axis: int, axes: Mapping[str, int]) -> int:
    rank = len(spec.shape)
    if not -rank <= axis < rank or axis % rank == axes[spec.name]:
        raise OptionError(
            f"{spec.name!r} cannot be padded along axis {axis}: it has {rank} axes, "
            f"and axis {axes[spec.name]} is the batch axis"
        )
    return axis % rank


def served_inputs(
    instance: Instance, batching: Batching, hidden: Collection[str]
) -> list[TensorSpec]:
    """The inputs that clients give, their batch and padded axes free."""
    return [
        replace(
            _free(spec, batching),
            is_optional=spec.is_optional or spec.name in batching.layout.masks,
        )
        for spec in instance.inputs
        if spec.name not in hidden
    ]


def served_outputs(
    instance: Instance, batching: Batching, hidden: Collection[str]
) -> list[TensorSpec]:
    """The outputs that clients get, their batch and cut axes free."""
    return [_free(spec, batching) for spec in instance.outputs if spec.name not in hidden]


def _free(spec: TensorSpec, batching: Batching) -> TensorSpec:
    layout = batching.layout
    free = {layout.axes[spec.name]} if spec.name in layout.axes else set()
    if spec.name in layout.padded:
        free.add(layout.padded[spec.name].axis)
    if spec.name in layout.cuts:
        free.add(layout.cuts[spec.name][0])
    shape = tuple(-1 if axis in free else size for axis, size in enumerate(spec.shape))
    return replace(spec, shape=shape)
