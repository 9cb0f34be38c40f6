"""The graph of an ensemble: which model makes which tensor, checked before it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from onward.errors import OptionError, ServingError
from onward.message_text import suggest_names
from onward.serving.core import Json
from onward.serving.models.model_config import TYPES, normalize, whole
from onward.serving.requests import TensorSpec

# (name, version) -> the inputs and outputs of a model that is ready; ServingError if it is not
Signature = Callable[[str, str], tuple[Sequence[TensorSpec], Sequence[TensorSpec]]]


@dataclass(frozen=True)
class EnsembleStep:
    """One model of an ensemble; maps are from the model's names to the ensemble's."""

    model: str
    version: str  # "": the highest
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class EnsembleGraph:
    """An ensemble's own inputs and outputs, and the models in between."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[EnsembleStep, ...]  # in an order in which they can run
    max_batch_size: int = 0

    @property
    def models(self) -> list[str]:
        """The names of the models that it needs."""
        return list(dict.fromkeys(step.model for step in self.steps))


def read_ensemble(name: str, config: Json) -> EnsembleGraph:
    """The graph of a normalised configuration; OptionError if it is none."""
    steps = []
    for each in config.get("ensemble_scheduling", {}).get("step", ()):
        version = whole(each.get("model_version", -1), "model_version", name)
        steps.append(
            EnsembleStep(
                str(each.get("model_name", "")),
                str(version) if version > 0 else "",
                {str(key): str(value) for key, value in each.get("input_map", {}).items()},
                {str(key): str(value) for key, value in each.get("output_map", {}).items()},
            )
        )
    if not steps:
        raise OptionError(f"ensemble {name!r} has no steps")
    if name in (step.model for step in steps):
        raise OptionError(f"ensemble {name!r} has itself as a step")
    inputs = tuple(_spec(each, config, name) for each in config.get("input", ()))
    outputs = tuple(_spec(each, config, name) for each in config.get("output", ()))
    if not inputs or not outputs:
        raise OptionError(f"ensemble {name!r} must list its inputs and outputs")
    size = int(config.get("max_batch_size", 0))
    return EnsembleGraph(name, inputs, outputs, _sorted(name, inputs, outputs, steps), size)


def check_parts(graph: EnsembleGraph, signature: Signature) -> None:
    """Compare the tensors of an ensemble with its models; OptionError in one line."""
    tensors = {spec.name: spec for spec in graph.inputs}
    for step in graph.steps:
        try:
            inputs, outputs = signature(step.model, step.version)
        except ServingError as error:
            raise OptionError(
                f"ensemble {graph.name!r} needs model {step.model!r}, which is not ready: {error}"
            ) from None
        known = {spec.name: spec for spec in inputs}
        for name, tensor in step.inputs.items():
            part = _part(graph.name, step.model, name, known, "input")
            _check_same(graph.name, step.model, part, tensors[tensor])
            if tensors[tensor].is_optional and not part.is_optional:
                raise OptionError(
                    f"ensemble {graph.name!r}: input {tensor!r} is declared as optional, "
                    f"but {step.model!r} cannot run without its {name!r}"
                )
        missing = [s.name for s in inputs if s.name not in step.inputs and not s.is_optional]
        if missing:
            raise OptionError(
                f"ensemble {graph.name!r} maps nothing to input {missing[0]!r} of {step.model!r}"
            )
        made = {spec.name: spec for spec in outputs}
        for name, tensor in step.outputs.items():
            tensors[tensor] = _part(graph.name, step.model, name, made, "output")
    for spec in graph.outputs:
        _check_same(graph.name, "its output", tensors[spec.name], spec)


def loading_order(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of ensembles, each after those that it is made of."""
    before: dict[str, set[str]] = {}
    for name, config in configs.items():
        try:
            models = read_ensemble(name, normalize(config)).models
        except OptionError:  # loading it says why
            models = []
        before[name] = {model for model in models if model in configs}
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return list(configs)  # each of them waits for another one


def _spec(each: Json, config: Json, name: str) -> TensorSpec:
    datatype = TYPES.get(each["data_type"])
    if datatype is None or "dims" not in each:
        raise OptionError(f"ensemble {name!r}: {each['name']!r} has no data_type or no dims")
    front = (-1,) if config.get("max_batch_size", 0) else ()
    is_optional = bool(each.get("optional", False))
    return TensorSpec(each["name"], datatype, (*front, *each["dims"]), (), is_optional)


def _sorted(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    steps: Sequence[EnsembleStep],
) -> tuple[EnsembleStep, ...]:
    """The steps in an order in which each finds its tensors."""
    makers: dict[str, int | None] = {spec.name: None for spec in inputs}
    for place, step in enumerate(steps):
        for tensor in step.outputs.values():
            if tensor in makers:
                raise OptionError(f"ensemble {name!r}: tensor {tensor!r} is made twice")
            makers[tensor] = place
    before: dict[int, set[int]] = {}
    for place, step in enumerate(steps):
        for tensor in step.inputs.values():
            if tensor not in makers:
                hint = suggest_names(tensor, makers, "there are")
                raise OptionError(f"ensemble {name!r}: nothing makes tensor {tensor!r}: {hint}")
        sources = (makers[tensor] for tensor in step.inputs.values())
        before[place] = {source for source in sources if source is not None}
    for spec in outputs:
        if makers.get(spec.name) is None:
            raise OptionError(f"ensemble {name!r}: no step makes its output {spec.name!r}")
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        circle = " -> ".join(steps[place].model for place in error.args[1])
        raise OptionError(f"ensemble {name!r} has a cycle: {circle}") from None
    return tuple(steps[place] for place in order)


def _part(
    ensemble: str, model: str, name: str, known: Mapping[str, TensorSpec], what: str
) -> TensorSpec:
    if name not in known:
        hint = suggest_names(name, known, "it has")
        raise OptionError(f"ensemble {ensemble!r}: model {model!r} has no {what} {name!r}: {hint}")
    return known[name]


def _check_same(ensemble: str, model: str, part: TensorSpec, tensor: TensorSpec) -> None:
    fits = not part.shape or not tensor.shape or (
        len(part.shape) == len(tensor.shape)
        and all(a == b or -1 in (a, b) for a, b in zip(part.shape, tensor.shape))
    )  # fmt: skip
    if part.datatype == tensor.datatype and fits:
        return
    raise OptionError(
        f"ensemble {ensemble!r}: {part.name!r} of {model} is {part.datatype} {list(part.shape)}, "
        f"but {tensor.name!r} is {tensor.datatype} {list(tensor.shape)}"
    )
