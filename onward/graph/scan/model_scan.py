"""Scan a model's bytes before anything is built from them: what they hold, what they grow to.

scan = scan_model(data)       # raises what `limits` refuse
scan.operators["", "Conv"]    # 53

One walk over the bytes gives all that opening a model needs.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from dataclasses import dataclass, field

import numpy as np

from onward.errors import InvalidModel, UnsafeModel
from onward.graph.limits import (
    DEFAULT_LIMITS,
    ModelLimits,
    Operator,
    check_operators,
    exceeded,
)
from onward.graph.operators import MAY_DRAW, SHAPE_ONLY
from onward.graph.scan.crashing_nodes import check_node_form
from onward.graph.scan.folded_sizes import UNKNOWN, FoldedConstant, Growth, folded_result
from onward.graph.scan.function_sizes import CountedBody, FunctionId, inlined
from onward.graph.scan.onnx_messages import (
    BITS,
    STRING,
    ScannedAttribute,
    ScannedNode,
    ScannedTensor,
    ScannedValue,
    Span,
    check_external_range,
    read_node,
    read_opset,
    read_sparse,
    read_tensor,
    read_value,
)
from onward.graph.scan.protobuf import fields, signed, text
from onward.graph.scan.quantized_products import QuantizedProducts

_UNFOLDED = MAY_DRAW | {"EPContext"}
_NEWEST_OPSET = 1 << 16  # the newest is 28; other domains count otherwise
_FIRST_OVERRIDABLE_IR = 4  # before, initializers had to be inputs too, and were constants


@dataclass(slots=True)
class ModelScan:
    """What a model's bytes hold, and what they would become."""

    size: int
    ir_version: int = 0
    has_graph: bool = False
    nodes: int = 0  # subgraphs and functions included
    nesting: int = 0
    expanded_nodes: int = 0  # once every call of a function is its body
    opsets: dict[str, int] = field(default_factory=dict)
    operators: Counter[Operator] = field(default_factory=Counter)
    functions: dict[FunctionId, CountedBody] = field(default_factory=dict)
    external: list[ScannedTensor] = field(default_factory=list)  # tensors with data in other files
    initializers: int = 0
    sparse: int = 0
    weight_elements: int = 0  # of tensors whose data is in the model
    weight_bytes: int = 0  # of all tensors
    largest_weight: int = 0  # bytes
    growth: Growth = field(default_factory=Growth)
    doubtful: set[str] = field(default_factory=set)  # operators that onnxruntime may get wrong
    casts_to: set[int] = field(default_factory=set)  # the types that Casts name
    products: QuantizedProducts = field(default_factory=QuantizedProducts)


def scan_model(
    data: bytes,
    limits: ModelLimits = DEFAULT_LIMITS,
    *,
    any_domain: bool = False,
    name: str = "the model",
) -> ModelScan:
    """Scan a model; refuse bytes that do not parse and whatever exceeds a limit."""
    if len(data) > limits.file_bytes:
        raise exceeded(limits, "file_bytes", len(data), "bytes", name)
    walk = _Walk(data, limits, name)
    try:
        scan = walk.model()
    except InvalidModel as error:
        raise InvalidModel(f"{name}: {error}") from None
    if not scan.has_graph:
        raise InvalidModel(f"{name}: not an ONNX model (no graph in {len(data):,} bytes)")
    own = {domain for domain, _, _ in scan.functions}
    check_operators(walk.first.items(), own, limits, any_domain)
    return scan


class _Scope:
    """What is known about the values of a graph and of the graphs around it, by name."""

    def __init__(
        self, constants: ChainMap[str, FoldedConstant | None], in_function: bool = False
    ) -> None:
        self.constants = constants  # None: a feed decides
        self.shapes: dict[str, tuple[int | None, ...]] = {}  # of inputs
        self.in_function = in_function  # there, an unknown name may be a constant

    def inner(self) -> _Scope:
        return _Scope(self.constants.new_child(), self.in_function)

    def get(self, name: str) -> FoldedConstant | None:
        return self.constants.get(name, UNKNOWN if self.in_function else None)

    def read_shape(self, node: ScannedNode) -> FoldedConstant | None:
        """The input of Shape or Size: a shape that is declared in full is a constant."""
        name = node.inputs[0] if node.inputs else ""
        known = self.get(name)
        if known is not None or name not in self.shapes:
            return known or UNKNOWN
        dims = [dim for dim in self.shapes[name] if dim is not None and dim >= 0]
        if len(dims) == len(self.shapes[name]):
            return FoldedConstant.of(dims)
        return UNKNOWN if node.attributes else None


class _Walk:
    """One walk over a model's bytes. Graphs nest no deeper than the limit: recursion is safe."""

    def __init__(self, data: bytes, limits: ModelLimits, where: str) -> None:
        self.data, self.limits, self.where = data, limits, where
        self.scan = ModelScan(len(data))
        self.first: dict[Operator, str] = {}  # the first node of each operator

    # -- the model -----------------------------------------------------------------------------

    def model(self) -> ModelScan:
        scan, main = self.scan, CountedBody()
        graphs: list[Span] = []
        training: list[Span] = []
        functions: list[Span] = []
        for tag, a, b in fields(self.data, 0, len(self.data)):
            if tag == 8:
                scan.ir_version = signed(a)
            elif tag == 58:
                graphs.append((a, b))
            elif tag == 66:
                domain, version = read_opset(self.data, a, b)
                if not 0 <= version <= _NEWEST_OPSET:
                    raise InvalidModel(f"no opset {version} of {domain[:80] or 'ai.onnx'} exists")
                scan.opsets["" if domain == "ai.onnx" else domain] = version
            elif tag == 202:
                functions.append((a, b))
            elif tag == 162:
                inside = fields(self.data, a, b)
                training += [(c, d) for inner, c, d in inside if inner in (10, 18)]
        scan.has_graph = bool(graphs)
        for each in functions:
            self.function(*each)
        self.graph(graphs, _Scope(ChainMap()), 0, main)
        for each in training:  # no session runs them
            self.graph([each], _Scope(ChainMap()), 0, CountedBody(), "in its training graphs")
        self.expand(main)
        return scan

    def function(self, start: int, end: int) -> None:
        names = {10: "", 82: "", 106: ""}
        body, scope = CountedBody(), _Scope(ChainMap(), in_function=True)
        spans: list[Span] = []
        for tag, a, b in fields(self.data, start, end):
            if tag in names:
                names[tag] = self.name(a, b)
            elif tag == 58:
                spans.append((a, b))
        self.count(len(spans))
        for each in spans:
            self.node(read_node(self.data, *each, self.limits.node_values), scope, 0, body, "")
        call = ("" if names[82] == "ai.onnx" else names[82], names[10], names[106])
        if call in self.scan.functions:
            raise InvalidModel(f"function {call[0]}::{call[1]} is defined twice")
        self.scan.functions[call] = body

    def expand(self, main: CountedBody) -> None:
        """Check the limits of the model with its functions inlined."""
        scan, limits = self.scan, self.limits
        whole = inlined(main, scan.functions)
        scan.expanded_nodes, scan.growth = whole.nodes, whole.growth
        if whole.nodes > limits.expanded_nodes:
            what = "nodes once its functions are inlined"
            raise exceeded(limits, "expanded_nodes", whole.nodes, what, self.where)
        if whole.growth.work > max(limits.folding_work, 16 * scan.weight_elements):
            what = "elements made from constants"
            raise exceeded(limits, "folding_work", whole.growth.work, what, self.where)

    # -- graphs --------------------------------------------------------------------------------

    def graph(
        self, spans: list[Span], scope: _Scope, depth: int, body: CountedBody, hidden: str = ""
    ) -> None:
        """A graph; several fields of it are one graph, as protobuf merges them."""
        scan, limits = self.scan, self.limits
        scan.nesting = max(scan.nesting, depth)
        if depth > limits.nesting:
            raise exceeded(limits, "nesting", depth, "graphs inside each other", self.where)
        nodes: list[Span] = []
        inputs: list[ScannedValue] = []
        for start, end in spans:
            for tag, a, b in fields(self.data, start, end):
                if tag == 10:
                    nodes.append((a, b))
                    if len(nodes) + scan.nodes > limits.nodes:
                        break
                elif tag == 42:
                    tensor = read_tensor(self.data, a, b)
                    self.tensor(tensor, "an initializer", hidden)
                    scan.products.add_tensor(tensor.name, tensor)
                    scan.initializers += 1
                    scope.constants[tensor.name] = self.constant(tensor)
                elif tag == 122:
                    scope.constants[self.sparse(a, b)] = UNKNOWN
                elif tag in (90, 98, 106):
                    value = self.value(a, b)
                    inputs += [value] if tag == 90 else []
        self.count(len(nodes))
        for value in inputs:
            if (
                depth
                or scan.ir_version >= _FIRST_OVERRIDABLE_IR
                or value.name not in scope.constants
            ):
                scope.constants[value.name] = None
            if len(value.shapes) == 1:
                scope.shapes[value.name] = value.shapes[0]
        for a, b in nodes:
            self.node(read_node(self.data, a, b, limits.node_values), scope, depth, body, hidden)

    def count(self, nodes: int) -> None:
        self.scan.nodes += nodes
        if self.scan.nodes > self.limits.nodes:
            raise exceeded(self.limits, "nodes", self.scan.nodes, "nodes or more", self.where)

    def node(
        self, node: ScannedNode, scope: _Scope, depth: int, body: CountedBody, hidden: str
    ) -> None:
        self.check_node(node)
        operator = (node.domain, node.op)
        self.scan.operators[operator] += 1
        if operator not in self.first:
            self.first[operator] = str(node)
        body.nodes += 1
        call = (node.domain, node.op, node.overload)
        if call in self.scan.functions or node.domain:
            body.calls[call] += 1
        has_graphs = False
        for name, attribute in node.attributes.items():
            if attribute.refers_to and not scope.in_function:
                raise InvalidModel(
                    f"{node}: attribute {name!r} refers to the attribute {attribute.refers_to!r} "
                    "of a function, but the node is in no function\n"
                    "give the attribute a value where the model is exported"
                )
            for tensor in attribute.tensors:
                self.tensor(tensor, node, hidden)
            for each in attribute.sparse:
                self.sparse(*each)
            for each in attribute.graphs:
                has_graphs = True
                self.graph([each], scope.inner(), depth + 1, body, hidden)
        self.scan.products.add_node(node)
        if node.domain == "":
            self.record_types_and_defects(node)
        if not has_graphs and node.op not in _UNFOLDED:
            self.fold(node, call, scope, body)

    def fold(self, node: ScannedNode, call: FunctionId, scope: _Scope, body: CountedBody) -> None:
        """If all inputs are constants, so are the outputs: how large would they be?"""
        if node.op == "Constant" and node.domain == "":
            made = [self.constant_of(attribute) for attribute in node.attributes.values()]
            scope.constants.update(zip(node.outputs, made))
            return
        if node.op in SHAPE_ONLY and node.domain == "":
            given = [scope.read_shape(node)]
        else:
            given = [scope.get(name) for name in node.inputs if name]
        constants = [each for each in given if each is not None]
        if len(constants) != len(given) or (not given and node.domain == ""):
            return
        if call in self.scan.functions or (node.domain and scope.in_function):
            body.constant_calls.add(call)
            result = UNKNOWN
        else:
            result = folded_result(node, constants, body.growth)
        size = (result.size or 0) * max(result.letters, 1)
        if size > max(self.limits.folded_elements, 16 * self.scan.weight_elements):
            what = "elements made from constants"
            raise exceeded(self.limits, "folded_elements", size, what, str(node))
        for name in node.outputs:
            scope.constants[name] = result

    def constant_of(self, attribute: ScannedAttribute) -> FoldedConstant:
        """The value of a Constant node."""
        if attribute.tensors:
            return self.constant(attribute.tensors[0])
        if attribute.number is not None:
            return FoldedConstant.of([], np.array(attribute.number))
        if attribute.ints and attribute.items == len(attribute.ints):
            return FoldedConstant.of([attribute.items], np.array(attribute.ints))
        if attribute.real is not None:
            return FoldedConstant.of([], np.array(attribute.real))
        return UNKNOWN if attribute.sparse else FoldedConstant(attribute.items or 1)

    def record_types_and_defects(self, node: ScannedNode) -> None:
        """Record Casts' types, and what onnxruntime may get wrong (providers/ort/defects.py)."""
        name, attributes = node.op, node.attributes
        if name == "Cast":
            if "to" in attributes and attributes["to"].number is not None:
                self.scan.casts_to.add(int(attributes["to"].number))
        elif name == "Resize":
            mode = attributes.get("coordinate_transformation_mode")
            if mode is not None and mode.word == "align_corners":
                self.scan.doubtful.add(name)
        elif name in ("DFT", "STFT", "MaxUnpool") or (
            (name == "Attention" and len(node.outputs) > 3)
            or (name == "Dropout" and "seed" in attributes)
        ):
            self.scan.doubtful.add(name)

    # -- names, tensors, types -----------------------------------------------------------------

    def check_node(self, node: ScannedNode) -> None:
        most = self.limits.node_values
        for what, values in (("inputs", node.inputs), ("outputs", node.outputs)):
            if len(values) > most:
                raise exceeded(self.limits, "node_values", len(values), what, str(node))
        longest = max(map(len, (node.op, node.domain, node.name, *node.inputs, *node.outputs)))
        if longest > self.limits.name_bytes:
            raise exceeded(self.limits, "name_bytes", longest, "bytes in a name", str(node))
        check_node_form(node)

    def name(self, start: int, end: int) -> str:
        if end - start > self.limits.name_bytes:
            raise exceeded(self.limits, "name_bytes", end - start, "bytes in a name", self.where)
        return text(self.data, start, end)

    def tensor(self, tensor: ScannedTensor, where: object, hidden: str) -> None:
        """Refuse a tensor whose data does not fit its declaration; count all others."""
        if len(tensor.name) > self.limits.name_bytes:
            length = len(tensor.name)
            raise exceeded(self.limits, "name_bytes", length, "bytes in a name", str(where))
        tensor.check(where)
        if tensor.size > self.limits.elements:
            what = f"elements in the tensor {tensor.name!r}"
            raise exceeded(self.limits, "elements", tensor.size, what, str(where))
        if tensor.external is None:
            self.scan.weight_elements += tensor.size
        elif hidden:
            raise UnsafeModel(
                f"external data of {tensor.name!r} is {hidden}, where no engine reads it\n"
                "keep external data to initializers and attributes"
            )
        else:
            check_external_range(tensor)
            self.scan.external.append(tensor)
        size = tensor.size * BITS.get(tensor.dtype, 8) // 8
        self.scan.weight_bytes += size
        self.scan.largest_weight = max(self.scan.largest_weight, size)

    def sparse(self, start: int, end: int) -> str:
        """A sparse tensor: small in the file, as large as its shape in memory."""
        self.scan.sparse += 1
        dims, tensors = read_sparse(self.data, start, end)
        name = tensors[0].name if tensors else ""
        for tensor in tensors:
            self.tensor(tensor, f"sparse tensor {name!r}", "in a sparse tensor")
        if min(dims, default=0) < 0:
            raise InvalidModel(f"the shape {dims} of sparse tensor {name!r} has a negative size")
        if math.prod(dims) > self.limits.folded_elements:
            what, where = "elements once it is dense", f"sparse tensor {name!r}"
            raise exceeded(self.limits, "folded_elements", math.prod(dims), what, where)
        return name

    def value(self, start: int, end: int) -> ScannedValue:
        value = read_value(self.data, start, end)
        if len(value.name) > self.limits.name_bytes:
            raise exceeded(
                self.limits, "name_bytes", len(value.name), "bytes in a name", self.where
            )
        for shape in value.shapes:
            size = math.prod(dim for dim in shape if dim is not None and dim > 0)
            if size > self.limits.elements:
                what = f"elements in the shape of {value.name!r}"
                raise exceeded(self.limits, "elements", size, what, self.where)
        return value

    def constant(self, tensor: ScannedTensor) -> FoldedConstant:
        letters = tensor.given if tensor.dtype == STRING else 0
        return FoldedConstant.of(tensor.dims, tensor.values(self.data), letters)
