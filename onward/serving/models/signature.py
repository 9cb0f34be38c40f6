"""A model's inputs and outputs, from ONNX Runtime's words to the Open Inference Protocol's.

spec_of(session.get_inputs()[0]) -> TensorSpec("x", "FP32", (-1, 4), ("batch", ""))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onward.errors import RequestInvalid, TypeUnsupported
from onward.graph.dtypes import numpy_type
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import datatype_of


def spec_of(arg: Any) -> TensorSpec:
    """The spec of an input or output; `arg` has `name`, `type` and `shape`, as a NodeArg has."""
    sizes = list(arg.shape or ())
    return TensorSpec(
        arg.name,
        _datatype(arg),
        tuple(size if isinstance(size, int) and size >= 0 else -1 for size in sizes),
        tuple(size if isinstance(size, str) else "" for size in sizes),
        arg.type.startswith("optional("),
    )


def is_class_maps(kind: str) -> bool:
    """Whether a type is that of ZipMap: a list of maps of classes to scores, one for each row."""
    return kind in ("seq(map(string,tensor(float)))", "seq(map(int64,tensor(float)))")


def output_spec(arg: Any) -> TensorSpec:
    """The spec of an output; a list of maps of classes is served as a tensor of their scores."""
    if is_class_maps(arg.type):
        return TensorSpec(arg.name, "FP32", (-1, -1), ("", ""))
    return spec_of(arg)


def class_scores(maps: Sequence[Mapping[Any, float]]) -> Array:
    """The scores of a ZipMap: a row for each map, the classes in sorted order."""
    classes = sorted(maps[0]) if maps else []
    return np.array([[each[name] for name in classes] for each in maps], np.float32).reshape(
        len(maps), len(classes)
    )


def input_specs(needed: Iterable[Any], overridable: Iterable[Any]) -> list[TensorSpec]:
    """The inputs that a run needs, then the initializers that a request may replace.

    Models of old exporters list each of their weights as an input.
    """
    found = [spec_of(arg) for arg in needed]
    for arg in overridable:
        try:
            spec = spec_of(arg)
        except TypeUnsupported:  # it keeps its default
            continue
        found.append(replace(spec, is_optional=True, has_default=True))
    return found


def _datatype(arg: Any) -> str:
    kind = arg.type.removeprefix("optional(")
    dtype = numpy_type(kind) if kind.startswith("tensor(") else None
    try:
        if dtype is not None:
            return datatype_of(dtype)
    except RequestInvalid:
        pass
    raise TypeUnsupported(
        f"{arg.name!r} is {arg.type}, for which the Open Inference Protocol has no datatype\n"
        f"{_advice(arg.type)}"
    )


def _advice(kind: str) -> str:
    if "map(" in kind:
        return "export the model without the step that takes or gives maps, such as DictVectorizer"
    if kind.startswith("tensor("):
        return "add a Cast to a type that it has, such as float16, and export the model again"
    return "serve a model whose inputs and outputs are tensors of numbers, booleans or text"
