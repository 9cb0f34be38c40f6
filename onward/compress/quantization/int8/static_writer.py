"""Write nodes with measured ranges: QuantizeLinear and DequantizeLinear where engines fuse them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.int8.chains import (
    MOVING,
    data_inputs,
    result_of,
)
from onward.compress.quantization.int8.int8_layers import Int8Layer
from onward.compress.quantization.int8.ranges import Int8Range
from onward.graph.operators import named
from onward.passes.value_facts import Array, input_of, is_constant

_ROUNDED_BY_ORT = named("Conv ConvTranspose Gemm")
_LARGEST_BIAS = 1 << 30  # in steps of the bias: the sum of products still fits into int32

StoreWeight = Callable[[Int8Layer], tuple[ir.Value, Array]]  # the int8 initializer, and its scales


class StaticWriter:
    """Writes int8 nodes with measured ranges into a model, in place.

    Args:
        model: the model
        layers: of the nodes that become int8
        chosen: the names of the nodes that become int8
        ranges: of values, by name
        store: stores a layer's weight in 8 bits
        make_name: makes new names
    """

    def __init__(
        self,
        model: ir.Model,
        layers: Mapping[str, Int8Layer],
        chosen: Collection[str],
        ranges: Mapping[str, Int8Range],
        store: StoreWeight,
        make_name: Callable[[str], str],
    ) -> None:
        self._graph = model.graph
        self._layers, self._ranges, self._store, self._name = layers, ranges, store, make_name
        self._nodes = [node for node in model.graph if str(node.name) in chosen]
        self._chosen = frozenset(str(node.name) for node in self._nodes)
        self._int8: dict[ir.Value, ir.Value] = {}  # a value: the same behind Q and DQ
        self._quantizer_of: dict[ir.Value, ir.Node] = {}
        self._roots = self._share_ranges()
        self._constants: dict[tuple[str, bytes], ir.Value] = {}
        self._of_constant: dict[ir.Value, ir.Value] = {}

    def write(self) -> None:
        """Write all of the nodes."""
        results = {node: result_of(node) for node in self._nodes if self._ends_int8(node)}
        ranges = {node: self._range(self._input(node)) for node in self._nodes}
        inputs = {node: data_inputs(node) for node in self._nodes}
        for node in self._nodes:
            for value in inputs[node]:
                if is_constant(value):
                    self._replace_input(node, value, self._quantize_constant(value))
                else:
                    self._replace_input(node, value, self._quantize(value))
            layer = self._layers.get(str(node.name))
            if layer is not None:
                self._write_weight(node, layer, ranges[node])
        for node, result in results.items():
            self._end_int8(node, result)
        self._keep_float_layers()

    def _keep_float_layers(self) -> None:
        """Clip that changes no number, before float layers between int8 ones.

        onnxruntime would round the weights of such a layer to 8 bits, with one scale for all.
        """
        dequantized, clipped = set(self._int8.values()), dict[ir.Value, ir.Value]()
        for node in list(self._graph):
            x = node.inputs[0] if node.inputs else None
            if node.op_type not in _ROUNDED_BY_ORT or x not in dequantized:
                continue
            assert x is not None
            if not is_constant(node.inputs[1]) or not _is_quantized_behind(node):
                continue
            if x not in clipped:
                least = self._constant(np.finfo(np.float32).min)
                clipped[x] = self._add("Clip", [x, least], f"{x.name}/clipped")
                clipped[x].type, clipped[x].shape = x.type, x.shape
            node.replace_input_with(0, clipped[x])

    def _input(self, node: ir.Node) -> ir.Value:
        return data_inputs(node)[0]

    def _share_ranges(self) -> dict[ir.Value, ir.Value]:
        """Values whose range is another value's, because nodes only move numbers between them."""
        roots: dict[ir.Value, ir.Value] = {}
        for node in self._nodes:
            if node.op_type in MOVING and str(node.name) not in self._layers:
                value = data_inputs(node)[0]
                roots[node.outputs[0]] = roots.get(value, value)
        return roots

    def _range(self, value: ir.Value) -> Int8Range:
        found = self._ranges.get(str(self._roots.get(value, value).name))
        if found is not None:
            return found
        return range_of_constant(value)

    def _ends_int8(self, node: ir.Node) -> bool:
        """Whether a node's result is int8, and not only its data."""
        layer = self._layers.get(str(node.name))
        if layer is None or layer.operator == "Conv":
            return True
        result = result_of(node)
        uses = list(result.uses())
        return (
            layer.operator == "Gemm"
            and bool(uses)
            and not result.is_graph_output()
            and all(use.idx == 0 and str(use.node.name) in self._chosen for use in uses)
        )

    def _quantize(self, value: ir.Value) -> ir.Value:
        """A value behind QuantizeLinear and DequantizeLinear."""
        if value not in self._int8:
            given = self._range(value)
            scale, zero = self._constant(given.scale), self._constant(given.zero_point)
            q = self._add("QuantizeLinear", [value, scale, zero], f"{value.name}/int8")
            q.type, q.shape = ir.TensorType(ir.DataType.UINT8), value.shape
            y = self._add("DequantizeLinear", [q, scale, zero], f"{value.name}/dequantized")
            y.type, y.shape = value.type, value.shape
            self._int8[value] = y
            quantizer = q.producer()
            assert quantizer is not None
            self._quantizer_of[value] = quantizer
        return self._int8[value]

    def _quantize_constant(self, value: ir.Value) -> ir.Value:
        if value not in self._of_constant:
            array, given = np.asarray(value.const_value.numpy()), range_of_constant(value)  # type: ignore[union-attr]
            steps = np.rint(array / given.scale) + given.zero_point
            stored = self._initializer(
                f"{value.name}/int8", np.clip(steps, 0, 255).astype(np.uint8)
            )
            scale, zero = self._constant(given.scale), self._constant(given.zero_point)
            y = self._add("DequantizeLinear", [stored, scale, zero], f"{value.name}/dequantized")
            y.type, y.shape = value.type, value.shape
            self._of_constant[value] = y
        return self._of_constant[value]

    def _write_weight(self, node: ir.Node, layer: Int8Layer, data: Int8Range) -> None:
        stored, scales = self._store(layer)
        bias = None if layer.operator == "MatMul" else input_of(node, 2)
        if bias is not None:
            b = np.asarray(bias.const_value.numpy()).reshape(-1).astype(np.float64)  # type: ignore[union-attr]
            steps = data.scale * scales.astype(np.float64)
            whole = np.clip(np.rint(b / steps), -_LARGEST_BIAS, _LARGEST_BIAS)
            stored_bias = self._initializer(f"{layer.node}/bias/int32", whole.astype(np.int32))
            steps_value = self._initializer(f"{layer.node}/bias/scale", steps.astype(np.float32))
            y = self._add(
                "DequantizeLinear", [stored_bias, steps_value], f"{layer.node}/bias", axis=0
            )
            y.type, y.shape = bias.type, ir.Shape([len(whole)])
            node.replace_input_with(2, y)
        w = node.inputs[1]
        assert w is not None
        scale = self._initializer(f"{stored.name}/scale", scales)
        zero = self._initializer(f"{stored.name}/zero", np.zeros(len(scales), np.int8))
        y = self._add(
            "DequantizeLinear",
            [stored, scale, zero],
            f"{layer.node}/weight",
            axis=layer.channel_axis,
        )
        y.type, y.shape = w.type, w.shape
        node.replace_input_with(1, y)

    def _end_int8(self, node: ir.Node, result: ir.Value) -> None:
        """Let every reader of a result read its int8 form; a range replaces Relu and Clip."""
        y = self._quantize(result)
        reader = self._quantizer_of[result]
        for use in list(result.uses()):
            if use.node is not reader:
                use.node.replace_input_with(use.idx, y)
        activation = activation_between(node, result)
        if activation is not None and self._covers(activation, result):
            reader.replace_input_with(0, node.outputs[0])
        if result.is_graph_output():
            name = result.name
            result.name = self._name(f"{name}/float")
            y.name = name
            outputs: list[ir.Value] = list(self._graph.outputs)
            for place, value in enumerate(outputs):
                if value is result:
                    self._graph.outputs[place] = y

    def _covers(self, activation: ir.Node, result: ir.Value) -> bool:
        """Whether numbers beyond the range are what the activation cuts off."""
        given = self._range(result)
        if given.zero_point != 0:
            return False
        top = input_of(activation, 2) if activation.op_type == "Clip" else None
        if top is None or top.const_value is None:
            return True
        return given.high <= float(top.const_value.numpy()) * (1 + 1e-5)

    def _replace_input(self, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
        for index, value in enumerate(node.inputs):
            if value is old:
                node.replace_input_with(index, new)

    def _add(self, operator: str, inputs: list[ir.Value], name: str, **attributes: Any) -> ir.Value:
        node = ir.node(operator, inputs, attributes, name=self._name(f"{name}/{operator}"))
        node.outputs[0].name = self._name(name)
        self._graph.append(node)
        return node.outputs[0]

    def _constant(self, number: Any) -> ir.Value:
        array = np.asarray(number)
        key = (array.dtype.name, array.tobytes())
        if key not in self._constants:
            kind = "scale" if array.dtype.kind == "f" else "zero"
            self._constants[key] = self._initializer(kind, array)
        return self._constants[key]

    def _initializer(self, name: str, array: Array) -> ir.Value:
        return add_initializer(self._graph, self._name(name), array)


def _is_quantized_behind(node: ir.Node) -> bool:
    """Whether a node's result is quantized, behind a Relu or Clip or at once."""
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
        readers = [use.node for use in readers[0].outputs[0].uses()]
    return any(each.op_type == "QuantizeLinear" for each in readers)


def activation_between(node: ir.Node, result: ir.Value) -> ir.Node | None:
    """The activation between a node and its result."""
    return None if result is node.outputs[0] else result.producer()


def range_of_constant(value: ir.Value) -> Int8Range:
    """The range of a constant's numbers."""
    assert value.const_value is not None
    array = np.asarray(value.const_value.numpy())
    return Int8Range(min(float(array.min()), 0.0), max(float(array.max()), 0.0))


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """A new initializer of a graph."""
    # onnxruntime takes a tensor from outside of the model only if it is contiguous
    tensor = ir.tensor(np.asarray(array, order="C"), name=name)
    value = ir.val(name, dtype=tensor.dtype, shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value
