"""Check a configuration against the model, and serve the inputs and outputs that it declares."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.serving.core import Json
from onward.serving.instance import Instance, interrupt_run, is_compiling
from onward.serving.models.model_config import TYPES
from onward.serving.requests import Array, TensorSpec


@dataclass(frozen=True)
class Declared:
    """A tensor as clients see it, and the shape that the model has it in."""

    spec: TensorSpec
    model_shape: tuple[int, ...]

    @property
    def is_reshaped(self) -> bool:
        return len(self.model_shape) != len(self.spec.shape) or any(
            a != b for a, b in zip(self.model_shape, self.spec.shape) if a >= 0 and b >= 0
        )


def configured(
    instances: Sequence[Instance], config: Json, where: str, filled: Collection[str] = ()
) -> list[Instance]:
    """The instances with the inputs and outputs of a configuration; OptionError if they differ.

    Fewer outputs, another order, narrower sizes and `reshape` are the configuration's to choose.
    `filled`: inputs that the server fills if a client does not.
    """
    batched = config.get("max_batch_size", 0) > 0
    first = instances[0]
    controls = _filled_by_server(config)
    inputs = _declare(first.inputs, config.get("input", ()), "input", batched, where)
    outputs = _declare(first.outputs, config.get("output", ()), "output", batched, where)
    _check_optional(first.inputs, config.get("input", ()), {*controls, *filled}, where)
    if config.get("input"):
        named = {each.spec.name for each in inputs}
        for spec in first.inputs:
            if spec.name in controls:
                inputs.append(Declared(spec, spec.shape))
            elif spec.name not in named and not spec.is_optional:
                raise OptionError(f"{where}: the model's input {spec.name!r} is not listed")
    if config.get("output"):
        named = {each.spec.name for each in outputs}
        outputs += [
            Declared(spec, spec.shape)
            for spec in first.outputs
            if spec.name in controls and spec.name not in named
        ]
    if not _changes(first, inputs, outputs):
        return list(instances)
    return [ConfiguredInstance(each, inputs, outputs) for each in instances]


class ConfiguredInstance:
    """An instance with the inputs and outputs of its configuration."""

    def __init__(
        self, instance: Instance, inputs: Sequence[Declared], outputs: Sequence[Declared]
    ) -> None:
        self._instance = instance
        self.inputs = [each.spec for each in inputs]
        self.outputs = [each.spec for each in outputs]
        self._names = [spec.name for spec in self.outputs]
        self._reshaped_inputs = {each.spec.name: each for each in inputs if each.is_reshaped}
        self._reshaped_outputs = {each.spec.name: each for each in outputs if each.is_reshaped}

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or those of the configuration."""
        if self._reshaped_inputs:
            feeds = {
                name: _reshape(array, self._reshaped_inputs[name].model_shape)
                if name in self._reshaped_inputs
                else array
                for name, array in feeds.items()
            }
        found = self._instance.run(feeds, self._names if outputs is None else outputs)
        for name, each in self._reshaped_outputs.items():
            if name in found:
                found[name] = _reshape(found[name], each.spec.shape)
        return found

    @property
    def is_compiling(self) -> bool:
        """The instance runs shapes for the first time that its engine compiles for."""
        return is_compiling(self._instance)

    def interrupt(self) -> None:
        """End the run early, if the instance can."""
        interrupt_run(self._instance)

    def close(self) -> None:
        self._instance.close()


def _reshape(array: Array, shape: Sequence[int]) -> Array:
    """The array in a shape whose first dynamic size is the batch, if it has one."""
    sizes = list(shape)
    if sizes.count(-1) > 1 and sizes[0] == -1:
        sizes[0] = array.shape[0]
    return array.reshape(sizes)


def _declare(
    specs: Sequence[TensorSpec], listed: Sequence[Json], what: str, batched: bool, where: str
) -> list[Declared]:
    known = {spec.name: spec for spec in specs}
    if batched:
        for spec in specs:
            if spec.shape and spec.shape[0] != -1 and what == "input" and not spec.has_default:
                raise OptionError(
                    f"{where}: max_batch_size is above 0, but the first axis of {what} "
                    f"{spec.name!r} is {spec.shape[0]}: set max_batch_size to 0"
                )
    if not listed:
        return [Declared(spec, spec.shape) for spec in specs]
    found = []
    for each in listed:
        name = each["name"]
        if name not in known:
            hint = suggest_names(name, known, "it has")
            raise OptionError(f"{where}: the model has no {what} {name!r}: {hint}")
        found.append(_compare(known[name], each, what, batched, where))
    return found


def _check_optional(
    specs: Sequence[TensorSpec], listed: Sequence[Json], filled: Collection[str], where: str
) -> None:
    """Refuse what is declared as optional, and neither the model nor the server has a value for."""
    optional = {spec.name for spec in specs if spec.is_optional} | set(filled)
    for each in listed:
        if each.get("optional") and each["name"] not in optional:
            raise OptionError(
                f"{where}: input {each['name']!r} is declared as optional, "
                "but the model cannot run without it"
            )


def _compare(spec: TensorSpec, each: Json, what: str, batched: bool, where: str) -> Declared:
    """One declared tensor against the model's own."""
    datatype = TYPES.get(each["data_type"])
    if datatype is not None and datatype != spec.datatype:
        raise OptionError(
            f"{where}: {what} {spec.name!r} is declared as {each['data_type']}, "
            f"but is {spec.datatype} in the model"
        )
    if "dims" not in each:
        return Declared(spec, spec.shape)
    front = (-1,) if batched and not spec.has_default else ()
    dims = (*front, *each["dims"])
    reshape = each.get("reshape")
    inner = (*front, *reshape.get("shape", ())) if reshape is not None else dims
    given, made = list(each["dims"]), list(inner[len(front) :])
    if -1 not in (*given, *made) and math.prod(given) != math.prod(made):
        raise OptionError(
            f"{where}: {what} {spec.name!r} has dims {given}, which are {math.prod(given)} "
            f"elements, but reshape makes {math.prod(made)} of them: {made}"
        )
    if spec.shape and not _fits(inner, spec.shape):
        added = " (dims are those without the batch)" if front else ""
        raise OptionError(
            f"{where}: {what} {spec.name!r} is declared with the shape {list(inner)}{added}, "
            f"but is {list(spec.shape)} in the model"
        )
    axes = spec.axes if len(spec.axes) == len(dims) else ()
    return Declared(replace(spec, shape=dims, axes=axes), inner)


def _fits(declared: Sequence[int], model: Sequence[int]) -> bool:
    return len(declared) == len(model) and all(
        a == b or a == -1 or b == -1 for a, b in zip(declared, model)
    )


def _filled_by_server(config: Json) -> set[str]:
    """Inputs and outputs that clients never see: controls and states of sequences."""
    batching: Json = config.get("sequence_batching", {})
    names: list[Any] = [each.get("name") for each in batching.get("control_input", ())]
    for each in batching.get("state", ()):
        names += (each.get("input_name"), each.get("output_name"))
    return {str(name) for name in names}


def _changes(instance: Instance, inputs: Sequence[Declared], outputs: Sequence[Declared]) -> bool:
    return [each.spec for each in inputs] != list(instance.inputs) or [
        each.spec for each in outputs
    ] != list(instance.outputs)
