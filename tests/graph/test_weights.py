"""Weights from safetensors: one file, shards, a folder, and weights that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import save_file

from onward.errors import WeightsError
from onward.graph.builder import OpBuilder
from onward.graph.mapped import MappedTensor
from onward.graph.weights import read_weights, swap_weights


def two_weights() -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", (1, 2))
    a = op.initializer("a", np.zeros((2, 2), np.float32))
    b = op.initializer("b", np.zeros(2, np.float32))
    return op.model(y=op.Gemm(x, a, b))


A, B = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([5, 6], np.float32)


def arrays(model: ir.Model) -> dict[str, Any]:
    return {
        n: v.const_value.numpy().tolist()
        for n, v in model.graph.initializers.items()
        if v.const_value
    }


def write_shards(folder: Path) -> Path:
    save_file({"a": A}, folder / "model-1.safetensors")
    save_file({"b": B}, folder / "model-2.safetensors")
    index = folder / "model.safetensors.index.json"
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return index


def test_one_file_replaces_its_tensors(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "m.safetensors")
    model = two_weights()
    assert swap_weights(model, tmp_path / "m.safetensors") == ["a"]
    assert arrays(model) == {"a": A.tolist(), "b": [0, 0]}
    assert isinstance(model.graph.initializers["a"].const_value, MappedTensor)


@pytest.mark.parametrize("by", ["index", "folder"])
def test_shards_are_read_by_their_index(tmp_path: Path, by: str) -> None:
    index = write_shards(tmp_path)
    model = two_weights()
    assert swap_weights(model, index if by == "index" else tmp_path) == ["a", "b"]
    assert arrays(model) == {"a": A.tolist(), "b": B.tolist()}


def test_half_precision_types_are_read(tmp_path: Path) -> None:
    save_file({"h": A.astype(np.float16)}, tmp_path / "h.safetensors")
    (tensor,) = read_weights(tmp_path).values()
    assert tensor.dtype == ir.DataType.FLOAT16
    header = json.dumps({"b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    data = np.array([1.5, -2], ml_dtypes.bfloat16).tobytes()
    (tmp_path / "h.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (tensor,) = read_weights(tmp_path).values()
    assert tensor.numpy().astype(float).tolist() == [1.5, -2]


def test_unknown_names_are_an_error_unless_not_strict(tmp_path: Path) -> None:
    save_file({"a": A, "c": B, "d": B}, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=r"no initializer 'c' \(nor 1 others\)"):
        swap_weights(two_weights(), tmp_path)
    assert swap_weights(two_weights(), tmp_path, strict=False) == ["a"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": A[:1]}, r"weight 'a' has shape \(1, 2\), the model \(2, 2\)"),
        ({"a": A.astype(np.float64)}, "weight 'a' is DOUBLE, the model has FLOAT"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    tmp_path: Path, weights: dict[str, Any], message: str
) -> None:
    save_file({**weights, "b": B}, tmp_path / "m.safetensors")
    model = two_weights()
    with pytest.raises(WeightsError, match=message):
        swap_weights(model, tmp_path)
    assert arrays(model)["b"] == [0, 0]


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    save_file({"z": A}, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match="none of its 1 tensors is in the model"):
        swap_weights(two_weights(), tmp_path, strict=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"\xff" * 64,
        (5).to_bytes(8, "little") + b"{nope",
        (2).to_bytes(8, "little") + b"[]",
    ],
)
def test_broken_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match="is not a safetensors file"):
        read_weights(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [20], "data_offsets": [0, 80]}, "ends at byte"),
        (
            {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
            "8 bytes for F32 of shape",
        ),
        ({"dtype": "Q7", "shape": [2], "data_offsets": [0, 8]}, "the entry of 'a' is broken"),
        ({"shape": [2]}, "the entry of 'a' is broken"),
    ],
)
def test_broken_entries_are_named(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    header = json.dumps({"a": entry}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(WeightsError, match=message):
        read_weights(path)


def test_a_shard_outside_the_folder_or_missing_is_refused(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"shard 'model-2\.safetensors' is missing"):
        read_weights(index)
    index.write_text(json.dumps({"weight_map": {"a": "../m.safetensors"}}))
    with pytest.raises(WeightsError, match="is not in the index's folder"):
        read_weights(index)
    index.write_text("{}")
    with pytest.raises(WeightsError, match="not an index of safetensors shards"):
        read_weights(index)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    with pytest.raises(WeightsError, match=r"'a' is not in its shard 'model-2\.safetensors'"):
        read_weights(index)


def test_an_empty_or_ambiguous_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither a \.safetensors file nor an index"):
        read_weights(tmp_path)
    save_file({"a": A}, tmp_path / "1.safetensors")
    save_file({"a": A}, tmp_path / "2.safetensors")
    with pytest.raises(WeightsError, match="name the one you mean"):
        read_weights(tmp_path)
    with pytest.raises(WeightsError, match="no weights at"):
        read_weights(tmp_path / "3.safetensors")
