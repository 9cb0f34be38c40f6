"""PackedModel: a model as bytes, between the few times when it is needed.

Python's garbage collector visits every object of a graph again and again: to keep the graphs of a
module as objects makes each training step longer.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir


class PackedModel:
    """A model that is kept as bytes."""

    def __init__(self, model: ir.Model) -> None:
        self._bytes = ir.to_proto(model).SerializeToString()

    def unpack(self) -> ir.Model:
        """The model, a new object each time."""
        return ir.from_proto(onnx.load_from_string(self._bytes))
