"""PackedTensor: a tensor of a packed model, decoded each time that it is needed."""

from __future__ import annotations

import weakref

import onnx_ir as ir

from onward.errors import InvalidModel
from onward.graph.external import replace_external
from onward.graph.packed.container import PackedFile
from onward.graph.stored_tensor import Array, StoredTensor


def attach_tensors(model: ir.Model, file: PackedFile) -> None:
    """Give the tensors of a packed model's graph their data, which is not read yet."""
    replace_external(model, lambda tensor: PackedTensor(tensor, file))


class PackedTensor(StoredTensor):
    """A tensor in a packed file, which onnx-ir treats as one in memory.

    Its array is not kept: a model needs the memory of the tensors that are in use.
    """

    def __init__(self, source: ir.ExternalTensor, file: PackedFile) -> None:
        """The tensor whose number is the offset of `source`."""
        self._describe(source)
        self._file, self._number = file, source.offset or 0
        self._decoded: weakref.ref[Array] | None = None
        if self._number >= len(file.tensors) or file.tensors[self._number].size != self.nbytes:
            raise InvalidModel(
                f"{file.name} is damaged: tensor {self.name!r} has another size in its index\n"
                "get the file again, or pack the model again"
            )

    @property
    def raw(self) -> Array:
        """The bytes; while any reader holds them, the others get the same array."""
        array = self._decoded() if self._decoded is not None else None
        if array is None:
            array = self._file.read_tensor(self._number, self.name)
            array.setflags(write=False)
            self._decoded = weakref.ref(array)
        return array

    @property
    def packed(self) -> Array:
        return self.raw

    def __repr__(self) -> str:
        return f"PackedTensor<{self.dtype},{self.shape}>({self._file.name!r}, name={self.name!r})"
