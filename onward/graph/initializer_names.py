"""Rename an initializer without renaming the tensor that other models hold."""

from __future__ import annotations

import copy

import onnx_ir as ir


def rename(value: ir.Value, name: str) -> None:
    """Give a value another name; an initializer's tensor becomes its own first.

    onnx-ir renames a value's tensor along with it, and copies of a model share their tensors, with
    each other and with the message that they were read from: it would no longer be read.
    """
    tensor = value.const_value
    if tensor is not None and tensor.name != name:
        value.const_value = _own(tensor)
    value.name = name


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same data under a name of its own; nothing large is copied."""
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return copy.copy(tensor)
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
