"""FunctionOps: build the body of a model-local function."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import onnx_ir as ir

from onward.graph.builder import NodeBuilder


@final
class FunctionOps(NodeBuilder):
    """Writes a function's body, which has no initializers: its constants are nodes."""

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        value: ir.Value = self.Constant(value=ir.tensor(array))
        return value

    def argument(self, name: str) -> ir.Value:
        """A parameter of the function, of any type."""
        value = ir.Value(name=name)
        self.graph.inputs.append(value)
        return value

    def attribute(self, name: str, kind: ir.AttributeType) -> ir.Value:
        """An attribute of the call, as a scalar."""
        field = "value_int" if kind == ir.AttributeType.INT else "value_float"
        reference = ir.RefAttr(field, name, kind)
        node = ir.Node("", "Constant", [], [reference], name=self.name("Constant"))
        value = node.outputs[0]
        value.name, value.shape = self.name(name), ir.Shape(())
        value.dtype = ir.DataType.INT64 if field == "value_int" else ir.DataType.FLOAT
        self.graph.append(node)
        return value
