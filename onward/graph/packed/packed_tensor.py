"""PackedTensor: a tensor of a packed model, decoded each time that it is needed."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import InvalidModel
from onward.graph.external import replace_external
from onward.graph.packed.container import PackedFile

Array = np.ndarray[Any, Any]


def attach_tensors(model: ir.Model, file: PackedFile) -> None:
    """Give the tensors of a packed model's graph their data, which is not read yet."""
    replace_external(model, lambda tensor: PackedTensor(tensor, file))


class PackedTensor(ir.TensorProtocol):
    """A tensor in a packed file, which onnx-ir treats as one in memory.

    Its array is not kept: a model needs the memory of the tensors that are in use.
    """

    def __init__(self, source: ir.ExternalTensor, file: PackedFile) -> None:
        """The tensor whose number is the offset of `source`."""
        self.name, self.doc_string = source.name, source.doc_string
        self.dtype, self.shape = source.dtype, source.shape
        self.metadata_props = dict(source.metadata_props)
        self.meta = {}
        self._file, self._number = file, source.offset or 0
        self._decoded: weakref.ref[Array] | None = None
        if self._number >= len(file.tensors) or file.tensors[self._number].size != self.nbytes:
            raise InvalidModel(
                f"{file.name} is damaged: tensor {self.name!r} has another size in its index\n"
                "get the file again, or pack the model again"
            )

    @property
    def size(self) -> int:
        return math.prod(self.shape.numpy())

    @property
    def nbytes(self) -> int:
        return math.ceil(self.dtype.itemsize * self.size)

    @property
    def raw(self) -> Array:
        """The bytes; while any reader holds them, the others get the same array."""
        array = self._decoded() if self._decoded is not None else None
        if array is None:
            array = self._file.read_tensor(self._number, self.name)
            array.setflags(write=False)
            self._decoded = weakref.ref(array)
        return array

    def numpy(self) -> Array:
        """The tensor as an array that must not be changed."""
        shape = tuple(self.shape.numpy())
        if self.dtype.bitwidth < 8:
            proto = onnx.TensorProto(
                data_type=int(self.dtype), dims=shape, raw_data=self.raw.tobytes()
            )
            return ir.serde.deserialize_tensor(proto).numpy()
        kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return self.raw.view(kind).reshape(shape)

    def tobytes(self) -> bytes:
        return self.raw.tobytes()

    def tofile(self, file: Any) -> None:
        file.write(self.raw.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        array = array if dtype is None else array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __dlpack__(self, **how: Any) -> Any:
        return self.numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def __repr__(self) -> str:
        return f"PackedTensor<{self.dtype},{self.shape}>({self._file.name!r}, name={self.name!r})"
