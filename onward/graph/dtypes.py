"""Element types of tensors, with their names in ONNX, numpy, onnxruntime, safetensors and torch.

Needs only numpy: types that numpy lacks import ml_dtypes when they are used.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.lazy import LazyModule

ml_dtypes = LazyModule("ml_dtypes")


@dataclass(frozen=True)
class ElementType:
    """One row of the table."""

    number: int  # of onnx.TensorProto.DataType and onnx_ir.DataType
    onnx: str  # its name there
    numpy: str  # in numpy, or in ml_dtypes
    bits: int  # of one element; 0 for strings
    safetensors: str = ""  # "" where the format has no such type
    held_as: str = ""  # the wider type that torch holds it in, where torch lacks it

    @property
    def ort(self) -> str:
        """onnxruntime's word, as in "tensor(float)"."""
        return self.onnx.lower()

    @property
    def torch(self) -> str:
        """The attribute of torch that is this type, or the wider one that holds its values."""
        return self.held_as or self.numpy

    @property
    def is_in_numpy(self) -> bool:
        """Whether numpy has the type itself, without ml_dtypes."""
        return self.numpy not in _EXTENDED

    @property
    def is_packed(self) -> bool:
        """Whether ONNX packs several elements into a byte."""
        return 0 < self.bits < 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type; an ImportError where it takes ml_dtypes, which is not installed."""
        extended = self.numpy in _EXTENDED
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy) if extended else self.numpy)
        return found


ELEMENT_TYPES = (
    ElementType(1, "FLOAT", "float32", 32, "F32"),
    ElementType(2, "UINT8", "uint8", 8, "U8"),
    ElementType(3, "INT8", "int8", 8, "I8"),
    ElementType(4, "UINT16", "uint16", 16, "U16"),
    ElementType(5, "INT16", "int16", 16, "I16"),
    ElementType(6, "INT32", "int32", 32, "I32"),
    ElementType(7, "INT64", "int64", 64, "I64"),
    ElementType(8, "STRING", "object", 0),
    ElementType(9, "BOOL", "bool", 8, "BOOL"),
    ElementType(10, "FLOAT16", "float16", 16, "F16"),
    ElementType(11, "DOUBLE", "float64", 64, "F64"),
    ElementType(12, "UINT32", "uint32", 32, "U32"),
    ElementType(13, "UINT64", "uint64", 64, "U64"),
    ElementType(14, "COMPLEX64", "complex64", 64, "C64"),
    ElementType(15, "COMPLEX128", "complex128", 128),
    ElementType(16, "BFLOAT16", "bfloat16", 16, "BF16"),
    ElementType(17, "FLOAT8E4M3FN", "float8_e4m3fn", 8, "F8_E4M3"),
    ElementType(18, "FLOAT8E4M3FNUZ", "float8_e4m3fnuz", 8),
    ElementType(19, "FLOAT8E5M2", "float8_e5m2", 8, "F8_E5M2"),
    ElementType(20, "FLOAT8E5M2FNUZ", "float8_e5m2fnuz", 8),
    ElementType(21, "UINT4", "uint4", 4, held_as="uint8"),
    ElementType(22, "INT4", "int4", 4, held_as="int8"),
    ElementType(23, "FLOAT4E2M1", "float4_e2m1fn", 4, held_as="float32"),
    ElementType(24, "FLOAT8E8M0", "float8_e8m0fnu", 8, "F8_E8M0"),
    ElementType(25, "UINT2", "uint2", 2, held_as="uint8"),
    ElementType(26, "INT2", "int2", 2, held_as="int8"),
    ElementType(27, "FLOAT6E2M3", "float6_e2m3fn", 6, held_as="float32"),
    ElementType(28, "FLOAT6E3M2", "float6_e3m2fn", 6, held_as="float32"),
)
_EXTENDED = frozenset(each.numpy for each in ELEMENT_TYPES if each.number >= 16)

BY_NUMBER = {each.number: each for each in ELEMENT_TYPES}
BY_NUMPY = {each.numpy: each for each in ELEMENT_TYPES}
BY_ORT = {each.ort: each for each in ELEMENT_TYPES}
BY_SAFETENSORS = {each.safetensors: each for each in ELEMENT_TYPES if each.safetensors}

# ONNX's numbers, which are equal to the members of onnx_ir.DataType.
FLOATS = frozenset((1, 10, 11, 16))  # the floats that models compute in: FLOAT, FLOAT16, ...
HALVES = frozenset((10, 16))  # FLOAT16 and BFLOAT16: sums of them are taken in float32


@functools.cache
def ort_type(dtype: np.dtype[Any]) -> str:
    """A numpy type in onnxruntime's words.

    >>> ort_type(np.dtype("float32"))
    'tensor(float)'
    """
    name = "object" if dtype.kind in "US" else dtype.name
    return f"tensor({BY_NUMPY[name].ort if name in BY_NUMPY else name})"


@functools.cache
def numpy_type(kind: str) -> np.dtype[Any] | None:
    """The numpy type of a tensor type in onnxruntime's words; None where there is none.

    >>> numpy_type("tensor(float)")
    dtype('float32')
    """
    found = BY_ORT.get(kind.removeprefix("optional(").removeprefix("tensor(").rstrip(")"))
    try:
        return None if found is None else found.dtype
    except ImportError:
        return None
