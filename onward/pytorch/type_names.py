"""Data types of torch as ONNX's numbers and as TorchScript's names."""

from __future__ import annotations

from typing import Any

import torch

from onward.errors import TypeUnsupported
from onward.message_text import suggest_names

OnnxType = torch.onnx.TensorProtoDataType

_DTYPES: dict[str, torch.dtype] = {  # TorchScript's name -> torch's data type
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
_ONNX: dict[torch.dtype, Any] = {
    torch.uint8: OnnxType.UINT8,
    torch.int8: OnnxType.INT8,
    torch.int16: OnnxType.INT16,
    torch.int32: OnnxType.INT32,
    torch.int64: OnnxType.INT64,
    torch.float16: OnnxType.FLOAT16,
    torch.bfloat16: OnnxType.BFLOAT16,
    torch.float32: OnnxType.FLOAT,
    torch.float64: OnnxType.DOUBLE,
    torch.bool: OnnxType.BOOL,
    torch.complex64: OnnxType.COMPLEX64,
    torch.complex128: OnnxType.COMPLEX128,
}
_TORCH = {onnx: dtype for dtype, onnx in _ONNX.items()}


def pytorch_type_to_onnx_dtype(dtype_or_scalar_type: torch.dtype | str) -> Any:
    """ONNX's type of a torch data type, or of TorchScript's name for it.

    >>> pytorch_type_to_onnx_dtype("Half") == pytorch_type_to_onnx_dtype(torch.float16)
    True
    """
    dtype = dtype_or_scalar_type
    if isinstance(dtype, str):
        dtype = pytorch_scalar_type_to_pytorch_dtype(dtype)
    if dtype not in _ONNX:
        raise TypeUnsupported(f"Unsupported dtype {dtype}\nthere is no ONNX type for it")
    return _ONNX[dtype]


def pytorch_scalar_type_to_pytorch_dtype(dtype: str) -> torch.dtype:
    """torch's data type from TorchScript's name.

    >>> pytorch_scalar_type_to_pytorch_dtype("Long")
    torch.int64
    """
    if dtype not in _DTYPES:
        raise TypeUnsupported(f"Unsupported dtype {dtype}\n{suggest_names(dtype, _DTYPES)}")
    return _DTYPES[dtype]


def onnx_dtype_to_pytorch_dtype(dtype: Any) -> torch.dtype:
    """torch's data type from ONNX's, a torch.onnx.TensorProtoDataType or its number.

    >>> onnx_dtype_to_pytorch_dtype(1)
    torch.float32
    """
    known = {int(onnx): found for onnx, found in _TORCH.items()}
    if int(dtype) not in known:
        raise TypeUnsupported(f"Unsupported dtype {dtype}\nthere is no torch type for it")
    return known[int(dtype)]
