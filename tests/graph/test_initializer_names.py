"""Rename an initializer without renaming a shared tensor."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph.initializer_names import rename

TENSORS = {
    "numbers": onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "w"),
    "text": onnx.helper.make_tensor("w", onnx.TensorProto.STRING, [2], [b"a", b"b"]),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_rename_keeps_the_name_in_the_message(kind: str) -> None:
    proto = TENSORS[kind]
    value = ir.Value(name="w", const_value=ir.serde.TensorProtoTensor(proto))
    rename(value, "v")
    assert (proto.name, value.name) == ("w", "v")
    assert value.const_value is not None and value.const_value.name == "v"
    expected = onnx.numpy_helper.to_array(proto)
    np.testing.assert_array_equal(value.const_value.numpy().astype(str), expected.astype(str))


def test_rename_keeps_the_name_of_a_shared_tensor() -> None:
    tensor = ir.tensor(np.zeros(2, np.float32), name="w")
    first, second = (ir.Value(name="w", const_value=tensor) for _ in range(2))
    rename(second, "v")
    assert first.const_value is not None and first.const_value.name == "w"
