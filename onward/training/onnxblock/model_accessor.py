"""The open model, which blocks write into: `base(model)` and `empty_base()` open it.

One model is open at a time, as with the peer. Its weights may be in external files (`folder`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from onward.passes.downgrade import STOCK_OPSET

_IR_VERSION = 10
PROTOBUF_LIMIT = 2**31 - 1  # bytes of a protobuf message


class ModelAccessor:
    """Holds the model that blocks write into, until its `with` ends."""

    def __init__(
        self, model: onnx.ModelProto, folder: Path | None = None, opset: int | None = None
    ) -> None:
        self._model = model
        self._opset = opset
        self.folder = folder
        self.depth = 0  # of nested blocks

    @property
    def model(self) -> onnx.ModelProto:
        """The model as built so far."""
        return self._model

    @property
    def opset(self) -> int:
        """The opset of the result: the user's; 0: the oldest that has the operators."""
        if self._opset is not None:
            return self._opset
        imported = (o.version for o in self._model.opset_import if o.domain in ("", "ai.onnx"))
        return max(imported, default=0)

    def replace(self, model: onnx.ModelProto) -> None:
        """Replace the model; the old one stays unchanged."""
        self._opset = self.opset
        self._model = model


_GLOBAL_ACCESSOR: ModelAccessor | None = None
_GLOBAL_CUSTOM_OP_LIBRARY: Path | None = None


def current() -> ModelAccessor:
    """The open model."""
    if _GLOBAL_ACCESSOR is None:
        raise RuntimeError(
            "The onnx model was not set: a block writes into a model, and none is open.\n"
            "Call it inside `with onnxblock.base(model):` or `with onnxblock.empty_base():`."
        )
    return _GLOBAL_ACCESSOR


@contextmanager
def base(
    model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None
) -> Iterator[ModelAccessor]:
    """Let blocks write on top of a copy of this model.

    `model_path` is the model's file, if its weights are still in external files; by default these
    are looked for in the current folder.

    >>> from onnx.parser import parse_model
    >>> model = parse_model('<ir_version: 8, opset_import: ["": 15]> g (float[2] x) => (float[2] y)'
    ...                     '{ y = Neg(x) }')
    >>> from onward.training import onnxblock
    >>> with onnxblock.base(model) as handle:
    ...     _ = onnxblock.blocks.Abs()("y")
    >>> [node.op_type for node in handle.model.graph.node]
    ['Neg', 'Abs']
    """
    if model is None:
        raise RuntimeError(
            "Base onnx model cannot be None. Please use onnxblock.empty_base if you would like to "
            "build a model from scratch."
        )
    if model_path is None and model.ByteSize() > PROTOBUF_LIMIT:
        raise RuntimeError(
            f"This model is > 2GB ({model.ByteSize():,} bytes). Please pass in a path to the ONNX "
            "file instead.\nSave its weights in an external file: "
            "onnx.save(model, path, save_as_external_data=True)."
        )
    own = onnx.ModelProto()
    own.CopyFrom(model)
    folder = Path.cwd() if model_path is None else Path(model_path).parent
    with _opened(ModelAccessor(own, folder)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks write into a new, empty model, in an opset that stock onnxruntime loads."""
    newest = min(onnx.defs.onnx_opset_version(), STOCK_OPSET)
    model = onnx.ModelProto(ir_version=_IR_VERSION, producer_name="onward")
    model.graph.name = "graph"
    model.opset_import.add(domain="", version=min(opset_version or newest, newest))
    model.opset_import.add(domain="com.microsoft", version=1)
    with _opened(ModelAccessor(model, opset=opset_version or 0)) as accessor:
        yield accessor


@contextmanager
def _opened(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    global _GLOBAL_ACCESSOR
    if _GLOBAL_ACCESSOR is not None:
        raise RuntimeError(
            "Base onnx model already exists. Cannot create multiple ModelAccessors.\n"
            "Leave the `with` of the first one before the next begins."
        )
    _GLOBAL_ACCESSOR = accessor
    try:
        yield accessor
    finally:
        _GLOBAL_ACCESSOR = None


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[Path]:
    """Set the library that implements the model's custom operators."""
    global _GLOBAL_CUSTOM_OP_LIBRARY
    if _GLOBAL_CUSTOM_OP_LIBRARY is not None:
        raise RuntimeError(
            "CustomOp library already set. Cannot set multiple custom op libraries.\n"
            "Leave the `with` of the first one before the next begins."
        )
    path = Path(custom_op_library_path)
    if not path.exists():
        raise RuntimeError(f"Custom op library path {path} does not exist.")
    _GLOBAL_CUSTOM_OP_LIBRARY = path
    try:
        yield path
    finally:
        _GLOBAL_CUSTOM_OP_LIBRARY = None
