"""Find the weights of a model that can be stored in few bits, and the nodes that read them.

A site is a node with its weight: MatMul, Gemm, Conv, or Gather from a table (an embedding). Nodes
that read one weight, and an embedding that is also the head, share a store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.weights.blocks import Array
from onward.graph.dtypes import FLOATS
from onward.graph.mapped import MappedTensor
from onward.graph.operators import named
from onward.passes.rewrite import nodes_of
from onward.passes.value_facts import attribute, input_of
from onward.runner.finetune.linear_layers import LinearLayer, layer_of

LEAST_BLOCK = 16  # engines have kernels for blocks of 16 and more
_LEAST_WEIGHTS = 1024  # a smaller weight costs more in nodes than it saves
_WITH_WEIGHTS = named("MatMul Gather ConvTranspose LSTM GRU RNN")
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_ROWS_COMPARED = 4096


@dataclass(eq=False)
class WeightMatrix:
    """A weight as a matrix, one row for each output, which one or more nodes read.

    Attributes:
        weight: the initializer
        shape: of the matrix: (outputs, inputs)
        copies: initializers that hold the same numbers, transposed: a tied head that was exported
            twice
    """

    weight: ir.Value
    shape: tuple[int, int]
    view: tuple[int, ...]  # the weight's shape when it is read as a matrix or kernel
    rows_first: bool
    sites: list[WeightSite] = field(default_factory=list)
    copies: list[ir.Value] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.shape[0] * self.shape[1]

    @property
    def is_table(self) -> bool:
        """Whether rows of it are looked up."""
        return any(site.kind == "table" for site in self.sites)

    @property
    def is_shared(self) -> bool:
        """Whether several nodes read the same bytes: onnxruntime fuses no weight of two products.

        The nodes are then a lookup of rows, or com.microsoft::MatMulNBits.
        """
        products = [site for site in self.sites if site.kind == "linear"]
        shared = len(products) > 1 and len(products) == len(self.sites)
        plain = shared and all(map(_is_plain_product, products))
        return self.is_table or (plain and self.shape[1] % LEAST_BLOCK == 0)

    @property
    def kind(self) -> str:
        return "table" if self.is_table else self.sites[0].kind

    def allows_bits(self, bits: int) -> bool:
        """Whether engines compute it rightly in these bits.

        onnxruntime 1.31 fuses 2 bits with outputs that are not a multiple of 4, and errs.
        """
        product = self.kind == "linear" and not self.is_shared
        return bits != 2 or not product or self.shape[0] % 4 == 0

    def allows_block(self, bits: int, block: int) -> bool:
        """Whether all engines take blocks of this size: OpenVINO takes whole ones only.

        It has no 2 bits. Where no size divides the inputs, such as 100 of them, any is allowed.
        """
        size = self.shape[1]
        return size % block == 0 or (not self.is_shared and (bits == 2 or size % LEAST_BLOCK != 0))

    def allows_offsets(self, block: int) -> bool:
        """Whether the sums of blocks can follow the data that the weight multiplies."""
        plain = self.kind == "linear" and all(site.data is not None for site in self.sites)
        return plain and self.shape[1] % block == 0 and not self.is_shared

    def allows_zeros(self, bits: int, block: int) -> bool:
        """Whether each block may have a zero of its own: those of a looked-up row fill bytes."""
        if self.is_shared:
            return self.shape[1] // block * bits % 8 == 0
        return self.kind == "linear"

    def matrix(self) -> Array:
        """The weights, (outputs, inputs): a view of the model's tensor where possible."""
        assert self.weight.const_value is not None
        array = np.asarray(self.weight.const_value.numpy()).reshape(self.view)
        return array.reshape(self.shape) if self.rows_first else array.T

    def forget(self) -> None:
        """Release the pages of a mapped weight."""
        if isinstance(self.weight.const_value, MappedTensor):
            self.weight.const_value.forget_pages()


@dataclass(eq=False)
class WeightSite:
    """A node that multiplies by a weight, or looks up its rows.

    Attributes:
        kind: "linear" (MatMul, Gemm), "conv", or "table" (Gather)
        dtype: of the weights as the node reads them
    """

    node: ir.Node
    kind: str
    dtype: ir.DataType
    store: WeightMatrix

    @property
    def name(self) -> str:
        return str(self.node.name)

    @property
    def data(self) -> ir.Value | None:
        """The value that is multiplied by the weight; None where that is not one matrix."""
        if self.kind != "linear" or attribute(self.node, "transA", 0):
            return None
        return self.node.inputs[0]


def find_sites(model: ir.Model) -> tuple[list[WeightMatrix], dict[str, str]]:
    """The stores of a model in the order of their nodes, and the nodes that are refused, with why.

    Every node must have a name.
    """
    stores: dict[tuple[ir.Value, bool, tuple[int, ...]], WeightMatrix] = {}
    refused: dict[str, str] = {}
    for node in nodes_of(model):
        found = _read_site(node)
        if isinstance(found, str):
            refused[str(node.name)] = found
        elif found is not None:
            kind, dtype, store = found
            key = store.weight, store.rows_first, store.view
            store = stores.setdefault(key, store)
            store.sites.append(WeightSite(node, kind, dtype, store))
    kept = _refuse_infinite(_refuse_mixed(stores.values(), refused), refused)
    return _share_ties(kept), refused


def _read_site(node: ir.Node) -> tuple[str, ir.DataType, WeightMatrix] | str | None:
    """What a node reads; why it is refused; None if it has no weight."""
    if node.domain != "":
        return None
    if node.op_type == "Gather":
        return _read_table(node) or _refuse_operator(node)
    if node.op_type == "Conv":
        return _read_conv(node)
    if node.op_type not in ("MatMul", "Gemm"):
        return _refuse_operator(node)
    layer = layer_of(node)
    if layer is None:
        return _refuse_operator(node)
    return _read_linear(layer)


def _refuse_operator(node: ir.Node) -> str | None:
    """Why a node with a weight is not a site; None if it has no weight of that kind."""
    if node.op_type not in _WITH_WEIGHTS or large_weights(node) == 0:
        return None
    if node.op_type == "MatMul":
        return "its weight is several matrices: no engine multiplies these in few bits"
    return f"few bits are for weights of MatMul, Gemm, Conv and tables, not of {node.op_type}"


def large_weights(node: ir.Node) -> int:
    """The numbers of a node's weights, without those that are too small to save anything."""
    tensors = (value.const_value for value in node.inputs if value is not None)
    return sum(
        tensor.size
        for tensor in tensors
        if tensor is not None and tensor.dtype in FLOATS and tensor.size >= _LEAST_WEIGHTS
    )


def _read_linear(layer: LinearLayer) -> tuple[str, ir.DataType, WeightMatrix] | str:
    if not layer.is_product:
        return "the weight is the first factor: engines have no kernel for that"
    rows, size = layer.shape if layer.out_first else layer.shape[::-1]
    if reason := _refuse_weight(layer.weight, layer.dtype, rows * size):
        return reason
    return (
        "linear",
        layer.dtype,
        WeightMatrix(layer.weight, (rows, size), layer.shape, layer.out_first),
    )


def _read_conv(node: ir.Node) -> tuple[str, ir.DataType, WeightMatrix] | str | None:
    weight = input_of(node, 1)
    if weight is None or not weight.is_initializer() or weight.const_value is None:
        return None
    shape = tuple(weight.const_value.shape.numpy())
    if reason := _refuse_weight(weight, weight.const_value.dtype, math.prod(shape)):
        return reason
    matrix = shape[0], math.prod(shape[1:])
    return "conv", weight.const_value.dtype, WeightMatrix(weight, matrix, shape, rows_first=True)


def _read_table(node: ir.Node) -> tuple[str, ir.DataType, WeightMatrix] | str | None:
    table = input_of(node, 0)
    if table is None or not table.is_initializer() or table.const_value is None:
        return None
    shape = tuple(table.const_value.shape.numpy())
    if table.const_value.dtype not in FLOATS or len(shape) != 2 or attribute(node, "axis", 0) != 0:
        return None
    if reason := _refuse_weight(table, table.const_value.dtype, math.prod(shape)):
        return reason
    if shape[1] % LEAST_BLOCK:
        return f"its rows have {shape[1]} numbers, not a multiple of {LEAST_BLOCK}"
    return "table", table.const_value.dtype, WeightMatrix(table, (shape[0], shape[1]), shape, True)


def _refuse_weight(weight: ir.Value, dtype: ir.DataType, size: int) -> str:
    """Why a weight stays as it is; empty if it does not."""
    if dtype not in _TYPES:
        return f"its weight is {dtype.name.lower()}: only float32 and float16 are rounded"
    if weight.is_graph_output() or weight.is_graph_input():
        return "its weight is an input or an output of the model"
    if size < _LEAST_WEIGHTS:
        return f"its weight has {size} numbers: too few to save anything"
    return ""


def _refuse_mixed(stores: Iterable[WeightMatrix], refused: dict[str, str]) -> list[WeightMatrix]:
    """Without the stores that are read in two types, which no scale can have."""
    kept = []
    for store in stores:
        if len({site.dtype for site in store.sites}) == 1:
            kept.append(store)
            continue
        for site in store.sites:
            refused[site.name] = "its weight is read in two types"
    return kept


def _refuse_infinite(stores: Iterable[WeightMatrix], refused: dict[str, str]) -> list[WeightMatrix]:
    """Without the stores that have NaN or infinity, which no code stands for."""
    kept = []
    for store in stores:
        if _is_finite(store.matrix()):
            kept.append(store)
        else:
            refused |= dict.fromkeys(
                (site.name for site in store.sites), "its weight has NaN or infinite numbers"
            )
        store.forget()
    return kept


def _is_finite(w: Array) -> bool:
    steps = range(0, len(w), _ROWS_COMPARED)
    return all(bool(np.isfinite(w[i : i + _ROWS_COMPARED]).all()) for i in steps)


def _share_ties(stores: list[WeightMatrix]) -> list[WeightMatrix]:
    """One store for a table and a head of the same numbers: the table's."""
    tables = [store for store in stores if store.is_table and store.rows_first]
    kept = list(stores)
    for store in stores:
        if store in tables or not all(map(_is_plain_product, store.sites)):
            continue
        table = next((each for each in tables if _is_same(each, store)), None)
        if table is not None:
            if store.weight is not table.weight:
                table.copies.append(store.weight)
            for site in store.sites:
                site.store = table
            table.sites += store.sites
            kept.remove(store)
    return kept


def _is_plain_product(site: WeightSite) -> bool:
    """Whether a node is x w or x w + bias, without factors."""
    factors = (attribute(site.node, name, 1.0) for name in ("alpha", "beta"))
    return site.data is not None and all(factor == 1 for factor in factors)


def _is_same(a: WeightMatrix, b: WeightMatrix) -> bool:
    if a.shape != b.shape or a.sites[0].dtype != b.sites[0].dtype:
        return False
    if a.weight is b.weight:
        return True
    x, y = a.matrix(), b.matrix()
    steps = range(0, a.shape[0], _ROWS_COMPARED)
    return all(np.array_equal(x[i : i + _ROWS_COMPARED], y[i : i + _ROWS_COMPARED]) for i in steps)
