"""Rename an initializer without renaming the tensor that other models hold."""

from __future__ import annotations

import copy

import onnx_ir as ir


def rename(value: ir.Value, name: str) -> None:
    """Rename a value; an initializer's tensor is copied first, without its data.

    onnx-ir renames a value's tensor, too, and copies of a model share their tensors, with each
    other and with the message that they were read from, which would then be unreadable.
    """
    tensor = value.const_value
    if tensor is not None and tensor.name != name:
        value.const_value = _copy_tensor(tensor)
    value.name = name


def _copy_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor of the same data with a separate name; nothing large is copied."""
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return copy.copy(tensor)
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
