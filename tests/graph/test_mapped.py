"""MappedTensor: a range of a mapped file as a tensor."""

from __future__ import annotations

import io
import mmap
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph.mapped import MappedTensor

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(True),
    np.zeros((0, 4), np.float32),
    np.array([1.5, -2], ml_dtypes.bfloat16),
    np.array([1, 2], ml_dtypes.float8_e4m3fn),
    np.array([-8, 7, 1], ml_dtypes.int4),
    np.array([0, 3, 1, 2, 3], ml_dtypes.uint2),
    np.array([1 + 2j], np.complex64),
]


def mapped(array: object, folder: Path, offset: int = 3) -> MappedTensor:
    """The array behind a few bytes of a file, mapped."""
    tensor = ir.tensor(array, name="t", doc_string="said")  # type: ignore[arg-type]
    (folder / "data").write_bytes(b"\1" * offset + tensor.tobytes())
    with (folder / "data").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    shape = ir.Shape(tensor.shape.numpy())
    place = ir.ExternalTensor(
        "data", offset, tensor.nbytes, tensor.dtype, shape=shape, name="t", doc_string="said"
    )
    return MappedTensor(place, mapping, folder)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_every_type_reads_writes_and_serializes_as_a_tensor_in_memory(
    tmp_path: Path, array: object
) -> None:
    tensor, plain = mapped(array, tmp_path), ir.tensor(array, name="t", doc_string="said")  # type: ignore[arg-type]
    assert isinstance(tensor, ir.TensorProtocol)
    assert (tensor.size, tensor.nbytes, tensor.dtype) == (plain.size, plain.nbytes, plain.dtype)
    np.testing.assert_array_equal(tensor.numpy(), plain.numpy())
    np.testing.assert_array_equal(np.asarray(tensor), plain.numpy())
    assert tensor.tobytes() == plain.tobytes()
    written = io.BytesIO()
    tensor.tofile(written)
    assert written.getvalue() == plain.tobytes()
    assert ir.to_proto(tensor) == ir.to_proto(plain)


def test_arrays_are_views_that_outlive_the_file_and_the_tensor(tmp_path: Path) -> None:
    tensor = mapped(np.arange(6, dtype=np.float32), tmp_path)
    array = tensor.numpy()
    assert np.shares_memory(array, tensor.numpy())
    assert not array.flags.writeable
    (tmp_path / "data").unlink()
    tensor.forget_pages()
    del tensor
    assert array.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_reference_has_the_location_of_the_data(tmp_path: Path) -> None:
    tensor = mapped(np.arange(6, dtype=np.float32), tmp_path)
    proto = ir.to_proto(tensor.reference())
    assert proto.data_location == onnx.TensorProto.EXTERNAL
    entries = {entry.key: entry.value for entry in proto.external_data}
    assert entries == {"location": "data", "offset": "3", "length": "24"}
    assert tensor.reference().numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert f"{tmp_path / 'data'}" in repr(tensor)


def test_a_numpy_copy_is_separate_memory(tmp_path: Path) -> None:
    tensor = mapped(np.arange(3, dtype=np.float32), tmp_path)
    copy = np.array(tensor)
    copy[0] = 9
    assert tensor.numpy()[0] == 0
    assert np.asarray(tensor, np.float64).dtype == np.float64
