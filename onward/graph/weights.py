"""Swap a model's weights for those of safetensors files, mapped where they lie.

model = load("gpt2.onnx")
swap_weights(model, "model.safetensors")              # one file
swap_weights(model, "model.safetensors.index.json")   # shards, by their index
swap_weights(model, "checkpoint/")                    # the folder that holds either
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from onward.errors import WeightsError
from onward.graph.external import map_file
from onward.graph.mapped import MappedTensor
from onward.graph.paths import suggest_path
from onward.graph.safetensors_header import (
    HeaderError,
    header_length,
    numpy_type,
    parse_header,
)


def swap_weights(
    model: ir.Model, weights: str | os.PathLike[str], *, strict: bool = True
) -> list[str]:
    """Give the model's initializers the data of the same names, and return those names.

    Shapes and types must agree. Tensors that the model does not have are an error, unless
    `strict` is False; initializers that the weights do not have keep their data.
    """
    tensors = read_weights(weights)
    unknown = sorted(set(tensors) - set(model.graph.initializers))
    if strict and unknown:
        raise WeightsError(
            f"{weights}: the model has no initializer {unknown[0]!r}"
            f"{f' (nor {len(unknown) - 1} others)' if len(unknown) > 1 else ''}\n"
            "pass strict=False to leave them out"
        )
    names = sorted(set(tensors) & set(model.graph.initializers))
    if not names:
        raise WeightsError(f"{weights}: none of its {len(tensors)} tensors is in the model")
    for name in names:
        _check_fit(name, model.graph.initializers[name], tensors[name])
    for name in names:
        model.graph.initializers[name].const_value = tensors[name]
    return names


def set_initializers(model: ir.Model, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Give initializers this data; names that the model does not have are passed over.

    One set of tensors may be for several models, as in onnxruntime.
    """
    known = {n: tensor for n, tensor in tensors.items() if n in model.graph.initializers}
    for name, tensor in known.items():
        _check_fit(name, model.graph.initializers[name], tensor)
    for name, tensor in known.items():
        model.graph.initializers[name].const_value = tensor


def _check_fit(name: str, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    old = value.const_value
    shape, dtype = (old.shape, old.dtype) if old is not None else (value.shape, value.dtype)
    if shape is not None and tuple(shape) != tuple(tensor.shape):
        raise WeightsError(
            f"weight {name!r} has shape {tuple(tensor.shape)}, the model {tuple(shape)}"
        )
    if dtype is not None and dtype != tensor.dtype:
        raise WeightsError(
            f"weight {name!r} is {tensor.dtype.name}, the model has {dtype.name}\n"
            "convert one of them first"
        )


def read_weights(weights: str | os.PathLike[str]) -> dict[str, MappedTensor]:
    """Every tensor of a safetensors file, of an index's shards, or of a folder with either."""
    path = Path(weights)
    if path.is_dir():
        path = _main_file(path)
    if not path.is_file():
        raise WeightsError(f"no weights at {path}\n{suggest_path(path)}")
    if path.suffix == ".json":
        return _read_shards(path)
    return _read_file(path)


def _main_file(folder: Path) -> Path:
    for pattern in ("*.safetensors.index.json", "*.safetensors"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found[:4])
            raise WeightsError(
                f"{folder} has {len(found)} candidates ({names})\nname the one you mean"
            )
    raise WeightsError(f"{folder} has neither a .safetensors file nor an index of shards")


def _read_shards(index: Path) -> dict[str, MappedTensor]:
    try:
        shard_of: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(f"{index} is not an index of safetensors shards: {error!r}") from error
    tensors: dict[str, MappedTensor] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard:
            raise WeightsError(f"{index}: shard {shard!r} is not in the index's folder")
        path = index.parent / shard
        if not path.is_file():
            raise WeightsError(f"{index}: shard {shard!r} is missing")
        tensors.update(_read_file(path))
    lost = sorted(set(shard_of) - set(tensors))
    if lost:
        raise WeightsError(f"{index}: {lost[0]!r} is not in its shard {shard_of[lost[0]]!r}")
    return {name: tensors[name] for name in shard_of}


def _read_file(path: Path) -> dict[str, MappedTensor]:
    with path.open("rb") as file:
        mapping, size = map_file(file.fileno())
        try:
            header = file.read(header_length(file.read(8), size))
            entries, _ = parse_header(header, size)
        except HeaderError as error:
            raise WeightsError(f"{path} is not a safetensors file: {error}") from error
    start, tensors = 8 + len(header), {}
    for name, entry in entries.items():
        place = ir.ExternalTensor(
            path.name,
            start + entry.begin,
            entry.end - entry.begin,
            ir.DataType.from_numpy(numpy_type(entry.code)),
            shape=ir.Shape(entry.shape),
            name=name,
        )
        tensors[name] = MappedTensor(place, mapping, path.parent)
    return tensors
