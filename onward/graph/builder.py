"""OpBuilder builds a model from formulas; NodeBuilder is the abstract class of all builders.

op = OpBuilder()
x = op.input("x", "float32", ("batch", 64))
w = op.initializer("w", np.zeros((64, 10), np.float32))
model = op.model(y=op.Softmax(op.MatMul(x, w) , axis=-1))
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from onward.graph.shapes.node_inference import infer_outputs

Operand = ir.Value | np.ndarray[Any, Any] | float | int | bool | Sequence[float] | None

DEFAULT_OPSET = 23  # new enough for Attention and RMSNormalization, old enough for every engine


class NodeBuilder(ABC):
    """Adds nodes to a graph: each `op.Name(inputs, attribute=value)` returns the node's output.

    Numbers and arrays become constants of the type of the other operands; types and shapes
    are inferred as the graph grows. `outputs=n` returns a tuple of n outputs.
    """

    prefix = ""

    def __init__(self, graph: ir.Graph, taken: set[str], opsets: Mapping[str, int]) -> None:
        self.graph = graph
        self._taken, self._opsets = taken, opsets
        self._count = 0

    @abstractmethod
    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant with a generated name."""

    def opset(self, domain: str = "") -> int:
        """The version of a domain in which nodes are written."""
        return self._opsets.get(domain, 1)

    def name(self, wish: str) -> str:
        """A new name that starts with `wish`."""
        stem = f"{self.prefix}/{wish}" if self.prefix else wish
        while True:
            self._count += 1
            name = f"{stem}_{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def input(self, name: str, dtype: Any, shape: Sequence[int | str | None]) -> ir.Value:
        """A new graph input."""
        kind = ir.DataType.STRING if dtype == "string" else dtype
        if not isinstance(kind, ir.DataType):
            kind = ir.DataType.from_numpy(np.dtype(dtype))
        value = ir.val(name, dtype=kind, shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        return value

    def initializer(self, name: str, array: Any) -> ir.Value:
        """A named constant, such as a weight."""
        if (
            isinstance(array, np.ndarray) and array.dtype.kind in "OSU"
        ):  # onnx-ir's Tensor has no size for texts
            texts = [each if isinstance(each, bytes) else str(each).encode() for each in array.flat]
            held = np.array(texts, object).reshape(array.shape)
            tensor: ir.TensorProtocol = ir.StringTensor(held, name=name)
        else:
            tensor = ir.tensor(array, name=name)
        value = ir.val(
            name, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def add(
            *operands: Operand, outputs: int = 1, domain: str = "", **attributes: Any
        ) -> ir.Value | tuple[ir.Value, ...]:
            return self.node(op_type, operands, attributes, outputs=outputs, domain=domain)

        return add

    def node(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: dict[str, Any],
        *,
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Value | tuple[ir.Value, ...]:
        """Add a node; return its output, or a tuple if `outputs` is not 1."""
        schema = self._schema(op_type, domain)
        while operands and operands[-1] is None:  # trailing absent inputs are left out
            operands = operands[:-1]
        inputs = [self._value(operand, i, operands, schema) for i, operand in enumerate(operands)]
        given = [_attribute(name, value) for name, value in attributes.items() if value is not None]
        node = ir.Node(domain, op_type, inputs, given, num_outputs=outputs)
        for output in node.outputs:
            output.name = self.name(op_type)
        self.graph.append(node)
        if domain and domain not in self.graph.opset_imports:
            self.graph.opset_imports[domain] = 1
        if schema is not None:
            infer_outputs(node, schema)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def model(self, **outputs: ir.Value) -> ir.Model:
        """The model whose outputs have these names."""
        for name, value in outputs.items():
            if value.is_graph_input() or value.is_initializer() or value.is_graph_output():
                value = self.Identity(value)
            value.name = name
            self.graph.outputs.append(value)
        return ir.Model(self.graph, ir_version=10, producer_name="onward")

    def _schema(self, op_type: str, domain: str) -> onnx.defs.OpSchema | None:
        opset = self.opset(domain)
        schema = _schema(op_type, opset, domain)
        if schema is None and domain == "":
            raise AttributeError(f"opset {opset} has no operator {op_type}")
        return schema

    def _value(
        self,
        operand: Operand,
        index: int,
        operands: Sequence[Operand],
        schema: onnx.defs.OpSchema | None,
    ) -> ir.Value | None:
        if operand is None or isinstance(operand, ir.Value):
            return operand
        array = np.asarray(operand)
        if not isinstance(operand, (np.ndarray, np.generic)):
            array = array.astype(_shared_type(array, index, operands, schema))
        return self.constant(array)


@final
class OpBuilder(NodeBuilder):
    """Builds a new model.

    >>> op = OpBuilder()
    >>> y = op.Mul(op.input("x", "float16", (2, 3)), 2.0)
    >>> y.dtype.name, y.shape
    ('FLOAT16', Shape([2, 3]))
    """

    def __init__(self, opset: int = DEFAULT_OPSET, name: str = "graph") -> None:
        graph = ir.Graph((), (), nodes=(), opset_imports={"": opset}, name=name)
        super().__init__(graph, set(), graph.opset_imports)

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """An initializer with a generated name."""
        return self.initializer(self.name("constant"), array)


@functools.lru_cache(maxsize=1024)
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    if not onnx.defs.has(op_type, max_inclusive_version=opset, domain=domain):
        return None
    return onnx.defs.get_schema(op_type, opset, domain)


@functools.lru_cache(maxsize=1024)
def _input_kinds(schema: onnx.defs.OpSchema) -> tuple[str, ...]:
    """The type variables of a schema's inputs: inputs with the same one share a type."""
    return tuple(formal.type_str for formal in schema.inputs)


def _attribute(name: str, value: Any) -> ir.Attr:
    """An attribute from a Python value: the common types here, the others by onnx-ir."""
    if type(value) is int:
        return ir.AttrInt64(name, value)
    if type(value) in (list, tuple) and value and all(type(each) is int for each in value):
        return ir.AttrInt64s(name, value)
    (made,) = convert_attributes({name: value})
    return made


def _shared_type(
    array: np.ndarray[Any, Any],
    index: int,
    operands: Sequence[Operand],
    schema: onnx.defs.OpSchema | None,
) -> Any:
    """The type of a Python number: that of an operand which shares its type in the schema."""
    if schema is not None:
        kinds = _input_kinds(schema)
        last = len(kinds) - 1
        mine = kinds[min(index, last)]
        for i, other in enumerate(operands):
            shared = kinds[min(i, last)] == mine
            if shared and isinstance(other, ir.Value) and other.dtype is not None:
                return other.dtype.numpy()
    return {"f": np.float32, "i": np.int64, "b": np.bool_}.get(array.dtype.kind, array.dtype)
