"""The preprocessing that training stored with a model, as inputs and outputs of a server.

A model of images takes files and answers labels and scores; one of tables takes columns by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.serving.processing.image_processing import decode_images
from onward.serving.processing.image_settings import ImageSettings
from onward.serving.processing.top_classes import top_classes
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES
from onward.sessions.image_feeds import ImageLayout

# the format belongs to the runner, which is imported only for models that it wrote
_stored: Any = LazyModule("onward.runner.plan.preprocessing")

METADATA_KEY = "onward.preprocessing"
_MOST_LABELS = 5


@dataclass(frozen=True)
class StoredProcessing:
    """Inputs, outputs and what is done in between; no outputs: those of the model."""

    inputs: list[TensorSpec]
    prepare: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    outputs: list[TensorSpec]
    answer: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    labels: dict[str, list[str]]  # of the model's own output


def stored_processing(text: str, outputs: Sequence[TensorSpec]) -> StoredProcessing:
    """Read the JSON of a model's metadata."""
    kept = _stored.Preprocessing.from_json(text)
    labels = [str(each) for each in kept.classes]
    specs, answer = _answers(kept, labels, outputs)
    inputs, prepare = _inputs(kept)
    return StoredProcessing(
        inputs, prepare, specs, answer, {kept.output: labels} if kept.output and labels else {}
    )


def _inputs(kept: Any) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], Any]]:
    if kept.vocabulary is not None and not kept.vocabulary.columns:
        return _texts(kept)
    images = [source for source in kept.inputs if len(source.shape) == 4]
    if len(images) == 1 and len(kept.inputs) == 1:
        return _images(kept, images[0])
    return _columns(kept)


def _texts(kept: Any) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], Any]]:
    def prepare(feeds: Mapping[str, Array]) -> Any:
        return kept.feeds({"text": feeds["text"]}, target=False)

    return [TensorSpec("text", "BYTES", (-1,))], prepare


def _images(
    kept: Any, source: Any
) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], Any]]:
    """One input of files. Training had pixels as (channels, height, width) bytes."""
    [column] = source.columns
    is_last = tuple(source.transpose) == (0, 2, 3, 1)
    sizes = source.shape[1:]
    height, width, channels = sizes if is_last else (*sizes[1:], sizes[0])
    encoders = [each.to_json() for each in source.encoders.get(column, ())]
    learnt = next((each["size"] for each in encoders if each.get("size")), (None, None))
    layout = ImageLayout("NCHW", channels or 3, height or learnt[0], width or learnt[1])

    def prepare(feeds: Mapping[str, Array]) -> Any:
        files = feeds[column].reshape(-1).tolist()
        batch = decode_images(files, layout, ImageSettings()).transpose(0, 3, 1, 2)
        return kept.feeds({column: batch}, target=False)

    return [TensorSpec(column, "BYTES", (-1,), ("",), is_binary=True)], prepare


def _columns(kept: Any) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], Any]]:
    """One input for each column of the table."""
    texts = () if kept.vocabulary is None else kept.vocabulary.columns  # tokens are made of them
    specs = [TensorSpec(column, "BYTES", (-1,)) for column in texts]
    needed = kept.needed_columns(target=False)
    for source in kept.inputs:
        for column in source.columns:
            if column not in needed:
                continue
            records = [each.to_json() for each in source.encoders.get(column, ())]
            specs.append(_column(column, source, records))
    if len({spec.name for spec in specs}) != len(specs):
        raise OptionError("a column is used by two inputs: set preprocess to none to serve tensors")

    def prepare(feeds: Mapping[str, Array]) -> Any:
        return kept.feeds(feeds, target=False)

    return specs, prepare


def _column(column: str, source: Any, records: Sequence[Mapping[str, Any]]) -> TensorSpec:
    samples = [each.get("value", (each.get("categories") or [None])[0]) for each in records]
    categories = next((each["categories"] for each in records if each.get("categories")), ())
    takes = tuple(each if isinstance(each, str) else float(each) for each in categories)
    if any(isinstance(sample, str) for sample in samples):
        return TensorSpec(column, "BYTES", (-1,), samples=takes)
    if len(source.columns) > 1 or any(each["kind"] == "OneHotColumn" for each in records):
        return TensorSpec(column, "FP32", (-1,), samples=takes)
    datatypes = {dtype.name: name for name, dtype in DATATYPES.items()}
    datatype = "FP32" if records else datatypes.get(source.dtype, "FP32")
    shape = (-1, *(size if size is not None else -1 for size in source.shape[1:]))
    return TensorSpec(column, datatype, shape)


def _answers(
    kept: Any, labels: list[str], outputs: Sequence[TensorSpec]
) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], Mapping[str, Array]]]:
    output = next((spec for spec in outputs if spec.name == kept.output), None)
    if output is None or not labels or len(output.shape) not in (1, 2):
        return [], dict
    count = min(len(labels), _MOST_LABELS)

    def answer(found: Mapping[str, Array]) -> Mapping[str, Array]:
        scores = found[output.name]
        if scores.ndim == 1 or scores.shape[1] == 1:
            scores = _two_columns(scores.reshape(-1), kept.probabilities)
            return top_classes(scores, labels, count, softmax=False)
        return top_classes(scores[:, : len(labels)], labels, count, not kept.probabilities)

    specs = [TensorSpec("labels", "BYTES", (-1, count)), TensorSpec("scores", "FP32", (-1, count))]
    return specs, answer


def _two_columns(scores: Array, probabilities: bool) -> Array:
    """The probabilities of both classes from the one number of a binary classifier."""
    values = scores.astype(np.float32)
    p = values if probabilities else 1 / (1 + np.exp(-values))
    return np.stack([1 - p, p], 1)
