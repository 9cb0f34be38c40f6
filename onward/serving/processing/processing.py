"""Pre- and postprocessing around a model: an Instance that takes raw inputs and answers results.

preprocess: a function `module:function`, "image", "tokenizer", "none"; nothing: what is stored with
the model. postprocess: a function, "top_k:5", "softmax:5", "none"; nothing: what is stored.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onward.errors import DataError, FeedError, OptionError
from onward.serving.instance import Instance, interrupt_run, is_compiling
from onward.serving.models.function_instance import FunctionInstance
from onward.serving.models.function_signature import input_specs
from onward.serving.processing.image_processing import image_preprocessing
from onward.serving.processing.stored_processing import METADATA_KEY, stored_processing
from onward.serving.processing.tokenizing import tokenizer_preprocessing
from onward.serving.processing.top_classes import top_classes
from onward.serving.requests import Array, TensorSpec
from onward.serving.settings import ModelSettings

NONE = "none"


@dataclass(frozen=True)
class ProcessingPart:
    """What is done before or after the model: its specs on the client's side, and how."""

    specs: Sequence[TensorSpec]
    apply: Callable[[Mapping[str, Array]], Mapping[str, Array]]


class ProcessedInstance:
    """An instance with pre- and postprocessing around it."""

    def __init__(
        self, instance: Instance, before: ProcessingPart | None, after: ProcessingPart | None
    ) -> None:
        self._instance, self._before, self._after = instance, before, after
        self.inputs = instance.inputs if before is None else before.specs
        self.outputs = instance.outputs if after is None else after.specs

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or all."""
        if self._before is not None:
            try:
                feeds = self._before.apply(feeds)
            except DataError as error:  # of what the client sent
                raise FeedError(str(error)) from error
        if self._after is None:
            return self._instance.run(feeds, outputs)
        found = self._after.apply(self._instance.run(feeds))
        return {name: found[name] for name in (outputs or [spec.name for spec in self.outputs])}

    @property
    def is_compiling(self) -> bool:
        """The instance runs shapes for the first time that its engine compiles for."""
        return is_compiling(self._instance)

    def interrupt(self) -> None:
        """End the run early, if the instance can."""
        interrupt_run(self._instance)

    def close(self) -> None:
        self._instance.close()


def add_processing(
    instances: Sequence[Instance],
    settings: ModelSettings,
    folder: Path,
    metadata: Mapping[str, str],
) -> tuple[list[Instance], dict[str, list[str]]]:
    """The instances with their processing, and the labels of outputs that are stored with it."""
    first = instances[0]
    needed = [spec for spec in first.inputs if not spec.has_default]
    before: ProcessingPart | None = None
    after: ProcessingPart | None = None
    labels: dict[str, list[str]] = {}
    if METADATA_KEY in metadata and None in (settings.preprocess, settings.postprocess):
        stored = stored_processing(metadata[METADATA_KEY], first.outputs)
        labels = stored.labels
        if settings.preprocess is None:
            before = ProcessingPart(stored.inputs, stored.prepare)
        if settings.postprocess is None and stored.outputs:
            after = ProcessingPart(stored.outputs, stored.answer)
    if settings.preprocess not in (None, NONE):
        before = _preprocess(str(settings.preprocess), needed, folder)
    if settings.postprocess not in (None, NONE):
        after = _postprocess(str(settings.postprocess), first, folder, settings.labels)
    if before is None and after is None:
        return list(instances), labels
    return [ProcessedInstance(each, before, after) for each in instances], labels


def load_function(text: str, folder: Path) -> Callable[..., Any]:
    """The function of `module:function`; a file module.py next to the model is found first."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise OptionError(f"{text!r} is not a function: write module:function")
    path = folder / f"{module_name}.py"
    try:
        if path.is_file():
            module = _load_file(path, module_name)
        else:
            module = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"module {module_name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _load_file(path: Path, name: str) -> Any:
    """A module from its file, read again each time, so that a reload takes changes."""
    spec = importlib.util.spec_from_file_location(f"onward_served_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look it up
    spec.loader.exec_module(module)
    return module


def _preprocess(text: str, inputs: Sequence[TensorSpec], folder: Path) -> ProcessingPart:
    if text == "image":
        return ProcessingPart(*image_preprocessing(inputs, folder))
    if text == "tokenizer":
        return ProcessingPart(*tokenizer_preprocessing(inputs, folder))
    function = load_function(text, folder)
    names = [spec.name for spec in inputs]
    outputs = [TensorSpec(spec.name, spec.datatype, spec.shape) for spec in inputs]
    before = FunctionInstance(function, input_specs(function), outputs)

    def apply(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return before.run(feeds, names)

    return ProcessingPart(before.inputs, apply)


def _postprocess(
    text: str, instance: Instance, folder: Path, labels: Mapping[str, str]
) -> ProcessingPart:
    kind, _, count = text.partition(":")
    if kind in ("top_k", "softmax") and (count.isdigit() or not count):
        return _top_classes(instance, folder, labels, int(count or 5), kind == "softmax")
    function = load_function(text, folder)
    outputs = {spec.name: spec for spec in instance.outputs}
    names = [spec.name for spec in input_specs(function) if not spec.is_optional]
    given = {name: name for name in names}  # parameter -> output
    if not set(names) <= set(outputs):
        if len(names) != len(outputs):
            raise OptionError(
                f"the parameters of {text} are not outputs of the model: {', '.join(outputs)}"
            )
        given = dict(zip(names, outputs))
    specs = [replace(outputs[output], name=name, axes=()) for name, output in given.items()]
    after = FunctionInstance(function, specs)

    def apply(found: Mapping[str, Array]) -> dict[str, Array]:
        return after.run({name: found[output] for name, output in given.items()})

    return ProcessingPart(after.outputs, apply)


def _top_classes(
    instance: Instance, folder: Path, labels: Mapping[str, str], count: int, softmax: bool
) -> ProcessingPart:
    """The best classes of the first output that has labels, or of the first one."""
    names = [spec.name for spec in instance.outputs]
    output = next((name for name in names if name in labels), names[0])
    listed: list[str] = []
    if output in labels:
        path = folder / labels[output]
        if not path.is_file():
            raise OptionError(f"there are no labels at {path}")
        listed = path.read_text("utf-8").splitlines()
    specs = [TensorSpec("labels", "BYTES", (-1, -1)), TensorSpec("scores", "FP32", (-1, -1))]

    def apply(outputs: Mapping[str, Array]) -> dict[str, Array]:
        return top_classes(outputs[output], listed, count, softmax)

    return ProcessingPart(specs, apply)
