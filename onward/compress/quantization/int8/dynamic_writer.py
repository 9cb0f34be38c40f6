"""Write nodes whose data gets its range in each run, and Gather of int8 rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.int8.int8_layers import Int8Layer
from onward.compress.quantization.int8.static_writer import StoreWeight, add_initializer
from onward.compress.quantization.int8.weight_scales import channel_scales, round_weight
from onward.graph.int8_weights import LARGEST
from onward.passes.rewrite import detach
from onward.passes.value_facts import Array, attribute, input_of

CONTRIB = "com.microsoft"


class DynamicWriter:
    """Replaces nodes of a model by int8 ones that need no measured range, in place."""

    def __init__(
        self,
        model: ir.Model,
        store: StoreWeight,
        make_name: Callable[[str], str],
        largest: int = LARGEST,
    ) -> None:
        """`largest` is the largest number that rounded weights may have."""
        self._model, self._graph = model, model.graph
        self._store, self._name, self._largest = store, make_name, largest
        self._quantized: dict[ir.Value, list[ir.Value]] = {}
        self._scales: dict[str, ir.Value] = {}
        self._lstm_weights: dict[ir.Value, tuple[ir.Value, ir.Value, ir.Value]] = {}

    def write(self, node: ir.Node, layer: Int8Layer) -> None:
        """Replace one node."""
        {
            "MatMul": self._matmul,
            "Gemm": self._matmul,
            "LSTM": self._lstm,
            "Gather": self._gather,
        }[layer.operator](node, layer)

    def _matmul(self, node: ir.Node, layer: Int8Layer) -> None:
        """y = float(x8 w8) (x's scale * w's scales) + bias: what onnxruntime fuses into one."""
        x, old = node.inputs[0], node.outputs[0]
        assert x is not None
        if x not in self._quantized:
            self._quantized[x] = self._add("DynamicQuantizeLinear", [x], f"{x.name}/int8", 3)
            for value, kind in zip(
                self._quantized[x],
                (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8),
                strict=True,
            ):
                value.type = ir.TensorType(kind)
        x8, scale, zero = self._quantized[x]
        stored, scales = self._store(layer)
        stored, w_scales = self._as_columns(stored, layer), self._scale_value(stored, scales)
        w_zero = self._initializer(f"{layer.node}/zero", np.zeros(len(scales), np.int8))
        (product,) = self._add("MatMulInteger", [x8, stored, zero, w_zero], f"{layer.node}/product")
        product.type = ir.TensorType(ir.DataType.INT32)
        (whole,) = self._add("Cast", [product], f"{layer.node}/float", to=ir.DataType.FLOAT)
        (both,) = self._add("Mul", [scale, w_scales], f"{layer.node}/scales")
        (y,) = self._add("Mul", [whole, both], f"{layer.node}/scaled")
        bias = input_of(node, 2) if layer.operator == "Gemm" else None
        if bias is not None:
            (y,) = self._add("Add", [y, bias], f"{layer.node}/sum")
        self._take_place(old, y, node)

    def _as_columns(self, stored: ir.Value, layer: Int8Layer) -> ir.Value:
        """A weight of shape (out, in) as (in, out); the engine computes it once, at load."""
        if layer.channel_axis == 1:
            return stored
        (columns,) = self._add("Transpose", [stored], f"{layer.node}/columns", perm=[1, 0])
        columns.type = stored.type
        return columns

    def _gather(self, node: ir.Node, layer: Int8Layer) -> None:
        """y = float(rows8[indices]) scales[indices]: the table itself is never dequantized."""
        indices, old = node.inputs[1], node.outputs[0]
        assert indices is not None
        stored, scales = self._store(layer)
        column = self._scale_value(stored, scales, "column", (-1, 1))
        (rows,) = self._add("Gather", [stored, indices], f"{layer.node}/rows", axis=0)
        (own,) = self._add("Gather", [column, indices], f"{layer.node}/scales", axis=0)
        (whole,) = self._add("Cast", [rows], f"{layer.node}/float", to=ir.DataType.FLOAT)
        (y,) = self._add("Mul", [whole, own], f"{layer.node}/scaled")
        self._take_place(old, y, node)

    def _lstm(self, node: ir.Node, layer: Int8Layer) -> None:
        """The contrib operator DynamicQuantizeLSTM: weights are (directions, in, 4 hidden)."""
        inputs = [input_of(node, index) for index in range(8)]
        w, r = inputs[1], inputs[2]
        assert w is not None and r is not None
        w8, w_scale, w_zero = self._lstm_weight(w)
        r8, r_scale, r_zero = self._lstm_weight(r)
        inputs[1], inputs[2] = w8, r8
        kept = [
            each
            for name, each in node.attributes.items()
            if name not in ("layout", "hidden_size") and each.value is not None
        ]
        new = ir.Node(
            CONTRIB,
            "DynamicQuantizeLSTM",
            [*inputs, w_scale, w_zero, r_scale, r_zero],
            [*kept, ir.AttrInt64("hidden_size", _hidden_size(node, r))],
            num_outputs=len(node.outputs),
            name=self._name(f"{layer.node}/int8"),
        )
        self._graph.append(new)
        self._graph.opset_imports.setdefault(CONTRIB, 1)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            value.name = self._name(f"{old.name}/int8") if old.name else ""
            if old.name:
                self._take_place(old, value, None)
        detach(node)
        self._graph.remove(node)

    def _lstm_weight(self, w: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        if w not in self._lstm_weights:
            assert w.const_value is not None
            array = np.ascontiguousarray(np.asarray(w.const_value.numpy()).transpose(0, 2, 1))
            most = self._largest
            scales = np.stack([channel_scales(each, 1, largest=most) for each in array])
            pairs = zip(array, scales, strict=True)
            rounded = np.stack([round_weight(a, s, 1, most) for a, s in pairs])
            self._lstm_weights[w] = (
                self._initializer(f"{w.name}/int8", rounded),
                self._initializer(f"{w.name}/scale", scales),
                self._initializer(f"{w.name}/zero", np.zeros(scales.shape, np.int8)),
            )
        return self._lstm_weights[w]

    def _scale_value(
        self, stored: ir.Value, scales: Array, kind: str = "scale", shape: tuple[int, ...] = (-1,)
    ) -> ir.Value:
        key = f"{stored.name}/{kind}"
        if key not in self._scales:
            self._scales[key] = self._initializer(key, scales.reshape(shape))
        return self._scales[key]

    def _take_place(self, old: ir.Value, new: ir.Value, node: ir.Node | None) -> None:
        """Let all readers read another value; an output of the graph keeps its name."""
        new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if new.is_graph_output():
            name, old.name = old.name, self._name(f"{old.name}/float")
            new.name = name
        if node is not None:
            detach(node)
            self._graph.remove(node)

    def _add(
        self,
        operator: str,
        inputs: list[ir.Value],
        name: str,
        outputs: int = 1,
        **attributes: Any,
    ) -> list[ir.Value]:
        node = ir.node(
            operator,
            inputs,
            attributes,
            num_outputs=outputs,
            name=self._name(f"{name}/{operator}"),
        )
        for value in node.outputs:
            value.name = self._name(name)
        self._graph.append(node)
        return list(node.outputs)

    def _initializer(self, name: str, array: Array) -> ir.Value:
        return add_initializer(self._graph, self._name(name), array)


def _hidden_size(node: ir.Node, r: ir.Value) -> int:
    given = attribute(node, "hidden_size")
    assert r.const_value is not None
    return int(given if given is not None else r.const_value.shape.numpy()[2])
