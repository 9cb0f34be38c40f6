"""Write stored weights into a model: DequantizeLinear in front of MatMul, Gemm and Conv.

    MatMul(x, w)     MatMul(x, DequantizeLinear(codes, scales, block_size)), which onnxruntime fuses
                     into MatMulNBits; with offsets, x is Concat(x, sums, sums): see stored.py
    Conv(x, w)       Conv(x, Reshape(DequantizeLinear(codes, scales)))
    Gather(w, i)     Gather(numbers of a byte, Gather(bytes, i)) * Gather(scales, i)

A head that is tied to a table reads the table's bytes, as com.microsoft::MatMulNBits; so do
products that share a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.weights.blocks import Array, unpack
from onward.compress.quantization.weights.sites import WeightSite
from onward.compress.quantization.weights.stored import Stored
from onward.passes.rewrite import Names, substitute

CONTRIB = "com.microsoft"
_ACCURACY_LEVEL = 4  # int8 data: level 0 is 10 times as slow on some machines


class WeightWriter:
    """Replaces the weights of a model's nodes; tensors that several nodes read are added once."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._names = model, Names(model)
        self._kept: dict[tuple[Any, ...], ir.Value] = {}

    def write(self, site: WeightSite, node: ir.Node, graph: ir.Graph, stored: Stored) -> None:
        """Let a node read a stored weight.

        Args:
            site: the site in the model that was analysed
            node: its node in this model
            graph: the graph that holds the weight: it gets the tensors
            stored: the weight
        """
        if site.kind == "table":
            self._write_table(site, node, graph, stored)
        elif site.kind == "conv":
            self._write_conv(site, node, graph, stored)
        elif site.store.is_shared:
            self._write_tied(site, node, graph, stored)
        else:
            self._write_linear(site, node, graph, stored)

    def _write_linear(
        self, site: WeightSite, node: ir.Node, graph: ir.Graph, stored: Stored
    ) -> None:
        node.replace_input_with(1, self._dequantize(site, node, graph, stored, axis=0))
        if stored.sums:
            node.replace_input_with(0, self._append_sums(site, node, stored))
        if node.op_type == "Gemm":
            node.attributes["transB"] = ir.AttrInt64("transB", 0)
        self._replace_relus(node.outputs[0], site.dtype)

    def _replace_relus(self, y: ir.Value, dtype: ir.DataType) -> None:
        """Relu(y) = Max(y, 0): onnxruntime 1.31 does not fuse a product that Relu reads."""
        for node in [node for node, _ in y.uses() if node.domain == ""]:
            if node.op_type == "Add":  # of a bias
                self._replace_relus(node.outputs[0], dtype)
            elif node.op_type == "Relu":
                zero = self._constant(np.array(0), dtype)
                largest = self._add(node, "Max", [y, zero], like=node.outputs[0])
                self._replace(node, largest)

    def _append_sums(self, site: WeightSite, node: ir.Node, stored: Stored) -> ir.Value:
        """The data, followed by the sums of its blocks, twice: see stored.py."""
        x = node.inputs[0]
        assert x is not None
        key = "sums", x, stored.block, node.graph
        if key not in self._kept:
            ones = self._ones(stored, site.dtype)
            sums = self._add(node, "MatMul", [x, ones])
            self._kept[key] = self._add(node, "Concat", [x, sums, sums], {"axis": -1})
        return self._kept[key]

    def _write_conv(self, site: WeightSite, node: ir.Node, graph: ir.Graph, stored: Stored) -> None:
        matrix = self._dequantize(site, node, graph, stored, axis=1)
        shape = self._numbers(np.array(site.store.view))
        node.replace_input_with(1, self._add(node, "Reshape", [matrix, shape]))

    def _write_table(
        self, site: WeightSite, node: ir.Node, graph: ir.Graph, stored: Stored
    ) -> None:
        given, bits = node.inputs[1], stored.bits
        assert given is not None
        indices = self._one_axis(node, given)
        table = self._tensor(site, graph, "bytes", stored.codes)
        found = self._add(node, "Gather", [table, indices], {"axis": 0})
        numbers = self._read_codes(node, found, bits, site.dtype)
        held = self._tensor(site, graph, "scales", stored.scales)
        scales = self._add(node, "Gather", [held, indices], {"axis": 0})
        if stored.scales.dtype != site.dtype:
            scales = self._add(node, "Cast", [scales], {"to": site.dtype})
        axes = self._numbers(np.array([-1] if bits == 8 else [-2, -1]))
        if stored.zeros is not None:
            packed = self._tensor(site, graph, "zeros", stored.zeros)
            some = self._add(node, "Gather", [packed, indices], {"axis": 0})
            shape = self._add(node, "Shape", [scales])
            signed = self._read_codes(node, some, bits, site.dtype)
            zeros = self._add(node, "Reshape", [signed, shape])
            wide = self._add(node, "Unsqueeze", [zeros, axes])
            numbers = self._add(node, "Sub", [numbers, wide])
        scales = self._add(node, "Unsqueeze", [scales, axes])
        product = self._add(node, "Mul", [numbers, scales])
        self._replace(node, self._flatten(node, product, given, stored.shape[1]))

    def _read_codes(
        self, node: ir.Node, found: ir.Value, bits: int, dtype: ir.DataType
    ) -> ir.Value:
        """The codes in bytes, less their middle, along one more axis where a byte has several."""
        if bits == 8:
            wide = self._add(node, "Cast", [found], {"to": dtype})
            return self._add(node, "Sub", [wide, self._constant(np.array(128), dtype)])
        place = self._add(node, "Cast", [found], {"to": ir.DataType.INT32})
        codes = np.arange(256, dtype=np.uint8)
        signed = unpack(codes, bits, 2048).reshape(256, -1).astype(np.int64) - (1 << bits - 1)
        return self._add(node, "Gather", [self._constant(signed, dtype), place], {"axis": 0})

    def _one_axis(self, node: ir.Node, indices: ir.Value) -> ir.Value:
        """Computed indices in one axis: else the size of the product of constants is unknown."""
        if indices.producer() is None:
            return indices
        return self._add(node, "Reshape", [indices, self._numbers(np.array([-1]))])

    def _flatten(self, node: ir.Node, rows: ir.Value, indices: ir.Value, size: int) -> ir.Value:
        """Rows of blocks as rows of `size` numbers, in the shape of the indices."""
        last = np.array([size])
        if indices.shape is not None and indices.producer() is None:
            shape = self._numbers(np.concatenate([np.zeros(len(indices.shape), np.int64), last]))
        else:
            sizes = self._add(node, "Shape", [indices])
            shape = self._add(node, "Concat", [sizes, self._numbers(last)], {"axis": 0})
        return self._add(node, "Reshape", [rows, shape], like=node.outputs[0])

    def _write_tied(self, site: WeightSite, node: ir.Node, graph: ir.Graph, stored: Stored) -> None:
        rows, size = stored.shape
        attributes = {
            "K": size, "N": rows, "bits": stored.bits, "block_size": stored.block,
            "accuracy_level": _ACCURACY_LEVEL,
        }  # fmt: skip
        table = self._tensor(site, graph, "bytes", stored.codes)
        scales = self._floats(site, node, graph, "scales", stored.scales)
        inputs = [node.inputs[0], table, scales]
        if stored.zeros is not None:
            inputs.append(self._tensor(site, graph, "zeros", stored.zeros))
        y = self._add(node, "MatMulNBits", inputs, attributes, domain=CONTRIB, like=node.outputs[0])
        self._model.opset_imports[CONTRIB] = 1
        if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
            y = self._add(node, "Add", [y, node.inputs[2]], like=node.outputs[0])
        self._replace(node, y)

    def _dequantize(
        self, site: WeightSite, node: ir.Node, graph: ir.Graph, stored: Stored, axis: int
    ) -> ir.Value:
        codes = self._tensor(site, graph, f"int{stored.bits}", stored.codes)
        inputs = [codes, self._floats(site, node, graph, "scales", stored.scales)]
        if stored.zeros is not None:
            inputs.append(self._tensor(site, graph, "zeros", stored.zeros))
        attributes = {"axis": axis, "block_size": stored.block}
        wide = self._add(node, "DequantizeLinear", inputs, attributes)
        wide.type, wide.shape = ir.TensorType(site.dtype), codes.shape
        return wide

    def _floats(
        self, site: WeightSite, node: ir.Node, graph: ir.Graph, what: str, tensor: ir.TensorProtocol
    ) -> ir.Value:
        """Scales in the type of the site: engines widen constants when they load."""
        value = self._tensor(site, graph, what, tensor)
        if tensor.dtype == site.dtype:
            return value
        return self._add(node, "Cast", [value], {"to": site.dtype}, like=None)

    # -- nodes and tensors -------------------------------------------------------------------------

    def _tensor(
        self, site: WeightSite, graph: ir.Graph, what: str, tensor: ir.TensorProtocol
    ) -> ir.Value:
        """An initializer for a tensor, the same one for every node that reads it."""
        return self._initializer(f"{site.store.weight.name}.{what}", tensor, graph, id(tensor))

    def _initializer(
        self, wish: str, tensor: ir.TensorProtocol, graph: ir.Graph, *key: Any
    ) -> ir.Value:
        if (graph, *key) not in self._kept:
            name = self._names.fresh(wish)
            value = ir.val(
                name, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
            )
            graph.register_initializer(value)
            self._kept[graph, *key] = value
        return self._kept[graph, *key]

    def _numbers(self, array: Array) -> ir.Value:
        return self._constant(array, ir.DataType.INT64)

    def _constant(self, array: Array, dtype: ir.DataType) -> ir.Value:
        """A small constant of the main graph, which every graph may read."""
        numbers = array.astype(dtype.numpy())
        key = dtype, numbers.shape, numbers.tobytes()
        return self._initializer("constant", ir.tensor(numbers), self._model.graph, *key)

    def _ones(self, stored: Stored, dtype: ir.DataType) -> ir.Value:
        """A matrix that sums blocks: (inputs, sums).

        It is written as one number for each block; engines repeat it when they load the model.
        """
        size, block = stored.shape[1], stored.block
        key = "ones", size, block, dtype
        if key not in self._kept:
            eye = np.eye(size // block, stored.sums, dtype=np.int8)[:, None]
            first = self._model.graph[0]
            kept = self._initializer("blocks", ir.tensor(eye), self._model.graph, *key, "int8")
            shape = self._numbers(np.array([size // block, block, stored.sums]))
            matrix = self._numbers(np.array([size, stored.sums]))
            wide = self._add(first, "Cast", [kept], {"to": dtype})
            ones = self._add(first, "Expand", [wide, shape])
            self._kept[key] = self._add(first, "Reshape", [ones, matrix])
        return self._kept[key]

    def _add(
        self,
        node: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        like: ir.Value | None = None,
    ) -> ir.Value:
        """A new node in front of another one; its output has the type and shape of `like`."""
        made = ir.node(operator, inputs, attributes or {}, domain=domain)
        made.name = self._names.fresh(f"{node.name}/{operator}")
        value = made.outputs[0]
        value.name = self._names.fresh(f"{node.outputs[0].name}/{operator}")
        if like is not None:
            value.type, value.shape = like.type, like.shape
        assert node.graph is not None
        node.graph.insert_before(node, made)
        return value

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        """Replace a node by the one that makes a value, which takes its name."""
        made, graph = value.producer(), node.graph
        assert made is not None and graph is not None
        substitute(node.outputs[0], value, self._names)
        name = node.name
        graph.remove(node, safe=True)
        made.name = name
