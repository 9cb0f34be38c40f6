"""Swap a model's weights for those of safetensors files, mapped where they lie.

model = load("gpt2.onnx")
swap_weights(model, "model.safetensors")              # one file
swap_weights(model, "model.safetensors.index.json")   # shards, by their index
swap_weights(model, "checkpoint/")                    # the folder that holds either
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import onnx_ir as ir

from onward.errors import WeightsError
from onward.graph.external import map_file
from onward.graph.mapped import MappedTensor
from onward.graph.paths import suggest_path

# safetensors' names of types -> ONNX's
_DTYPES = {
    "F64": ir.DataType.DOUBLE,
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
    "F8_E4M3": ir.DataType.FLOAT8E4M3FN,
    "F8_E5M2": ir.DataType.FLOAT8E5M2,
    "F8_E8M0": ir.DataType.FLOAT8E8M0,
    "I64": ir.DataType.INT64,
    "I32": ir.DataType.INT32,
    "I16": ir.DataType.INT16,
    "I8": ir.DataType.INT8,
    "U64": ir.DataType.UINT64,
    "U32": ir.DataType.UINT32,
    "U16": ir.DataType.UINT16,
    "U8": ir.DataType.UINT8,
    "BOOL": ir.DataType.BOOL,
    "C64": ir.DataType.COMPLEX64,
}
_LONGEST_HEADER = 100 << 20  # bytes; safetensors' own limit


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
        header, start = _read_header(file, path, size)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = _DTYPES[entry["dtype"]], ir.Shape(_sizes(entry["shape"]))
            begin, end = _sizes(entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"{path}: the entry of {name!r} is broken: {error!r}") from error
        if not 0 <= begin <= end <= size - start:
            raise WeightsError(f"{path}: {name!r} ends at byte {start + end:,} of {size:,}")
        place = ir.ExternalTensor(
            path.name, start + begin, end - begin, dtype, shape=shape, name=name
        )
        if place.nbytes != end - begin:
            raise WeightsError(f"{path}: {name!r} has {end - begin:,} bytes for {place.nbytes:,}")
        tensors[name] = MappedTensor(place, mapping, path.parent)
    _check_apart(path, tensors)
    return tensors


def _sizes(numbers: Any) -> list[int]:
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError(f"{str(numbers)[:80]} are not sizes")
    return list(numbers)


def _check_apart(path: Path, tensors: dict[str, MappedTensor]) -> None:
    """No two tensors share bytes: what one of them says would change the other."""
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset < end and tensor.nbytes:
            raise WeightsError(f"{path}: {tensor.name!r} and {before!r} overlap")
        end, before = tensor.offset + tensor.nbytes, str(tensor.name)


def _read_header(file: IO[bytes], path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The JSON header of a safetensors file, and where its data starts."""
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if length > min(size - 8, _LONGEST_HEADER):
        raise WeightsError(f"{path} is not a safetensors file")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is not a safetensors file")
    return header, 8 + length
