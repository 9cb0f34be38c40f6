"""MappedTensor: a tensor whose data is a range of a memory-mapped file.

Several tensors share one mapping, which lives as long as any of them, or an array over it, does.
Nothing but the mapping is read: not the path again, so the file may be moved or removed, and the
working directory may change.

onnx-ir's own ExternalTensor opens its path when it is first read, is written into messages as a
reference to that path, and closes its mapping when it is loaded into memory.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onward.graph.stored_tensor import Array, StoredTensor


class MappedTensor(StoredTensor):
    """A tensor in a mapped file, which onnx-ir treats as one in memory."""

    def __init__(self, source: ir.ExternalTensor, mapping: mmap.mmap | None, folder: Path) -> None:
        """The data that `source` refers to; `mapping` is its file, None if that is empty."""
        self._describe(source)
        self.location, self.offset = str(source.location), source.offset or 0
        self.base_dir = folder
        self.raw = mapping

    @property
    def packed(self) -> Array:
        """The bytes as in the file: a view, not a copy."""
        if self.raw is None or self.nbytes == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.raw, np.uint8, self.nbytes, self.offset)

    def __repr__(self) -> str:
        place = f"{os.fspath(self.base_dir / self.location)!r}, offset={self.offset}"
        return f"MappedTensor<{self.dtype},{self.shape}>({place}, name={self.name!r})"

    def reference(self) -> ir.ExternalTensor:
        """The tensor as a message refers to it, its data in the file."""
        return ir.ExternalTensor(
            self.location, self.offset, self.nbytes, self.dtype, shape=ir.Shape(self.shape.numpy()),
            name=self.name or "", doc_string=self.doc_string, base_dir=self.base_dir,
            metadata_props=dict(self.metadata_props),
        )  # fmt: skip

    def forget_pages(self) -> None:
        """Release the memory of the file's pages; they are read again when needed."""
        if self.raw is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.raw.madvise(mmap.MADV_DONTNEED)
