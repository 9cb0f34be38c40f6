"""StoredTensor: what tensors have in common whose bytes are read from a file when needed."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

Array = np.ndarray[Any, Any]


class StoredTensor(ir.TensorProtocol):
    """A tensor that onnx-ir treats as one in memory; `packed` reads its bytes."""

    @property
    @abstractmethod
    def packed(self) -> Array:
        """The bytes of the tensor as a file has them; types below 8 bits share bytes."""

    def _describe(self, source: ir.ExternalTensor) -> None:
        """Take the name, type, shape and metadata of a reference to external data."""
        self.name, self.doc_string = source.name, source.doc_string
        self.dtype, self.shape = source.dtype, source.shape
        self.metadata_props = dict(source.metadata_props)
        self.meta = {}

    @property
    def size(self) -> int:
        return math.prod(self.shape.numpy())

    @property
    def nbytes(self) -> int:
        return math.ceil(self.dtype.itemsize * self.size)

    def numpy(self) -> Array:
        """The tensor as an array: a view of its bytes, or a copy where types are packed."""
        shape = tuple(self.shape.numpy())
        if self.nbytes == 0:
            return np.empty(shape, self.dtype.numpy())
        if self.dtype.bitwidth < 8:
            proto = onnx.TensorProto(
                data_type=int(self.dtype), dims=shape, raw_data=self.packed.tobytes()
            )
            return ir.serde.deserialize_tensor(proto).numpy()
        kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return self.packed.view(kind).reshape(shape)

    def tobytes(self) -> bytes:
        return self.packed.tobytes()

    def tofile(self, file: Any) -> None:
        file.write(self.packed.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        array = array if dtype is None else array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __dlpack__(self, **how: Any) -> Any:
        return self.numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()
