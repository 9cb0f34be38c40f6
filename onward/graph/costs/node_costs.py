"""Count what each node of a model computes, reads and writes, once its shapes are known.

FLOPs are counted as in flops.py: a multiply-add is 2. Bytes are those of a node that runs
separately: every input read once, every output written once; caches and fusion make it less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onward.graph.costs.attention_flops import ATTENTION_FLOPS
from onward.graph.costs.flops import FLOPS as ARITHMETIC
from onward.graph.costs.flops import NodeCall, Tensor, UnknownShape
from onward.graph.costs.ml_flops import ML_FLOPS
from onward.graph.operators import REARRANGING, SELECTING, SHAPE_ONLY, VIEWS, named
from onward.graph.scopes import COMPOSITES, bodies, origin, standard, stored_tensors
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.ml_operators import DOMAIN
from onward.graph.shapes.subgraph_sizes import TRIPS, changes_sizes, scan_length
from onward.graph.shapes.value_dependent import infer_computed_shapes

FLOPS = ARITHMETIC | ATTENTION_FLOPS | ML_FLOPS
_NEWEST = 1 << 30
_CALL = "onward.call"  # metadata of a node that a call was inlined to

# How a figure was found: by a rule; by treating an unknown operator as elementwise; with a loop of
# unknown length counted once; or not at all, because a shape is unknown.
Basis = Literal["rule", "estimate", "once", "unknown"]
_WORSE: tuple[Basis, ...] = ("rule", "estimate", "once", "unknown")

# Engines give the outputs of these the memory of their input.
_VIEWS = (
    VIEWS
    | SHAPE_ONLY
    | named(
        "Constant Dropout Optional OptionalGetElement OptionalHasElement SequenceAt "
        "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength"
    )
)
# These read no more of their first input than they write.
_PICKS = SELECTING | named("ArrayFeatureExtractor GatherBlockQuantized")
_OF_MAPS = named("CastMap DictVectorizer ZipMap")
# These move elements, or make them without arithmetic.
_MOVES = REARRANGING | named(
    "BitCast BlackmanWindow Cast CastLike CenterCropPad Col2Im Concat ConcatFromSequence "
    "ConcatTraining ConstantOfShape CropAndResize EyeLike HammingWindow HannWindow ImageDecoder "
    "MaxUnpool MelWeightMatrix MemcpyFromHost MemcpyToHost NonMaxSuppression OneHot Pad "
    "QLinearConcat QLinearWhere Range RegexFullMatch ReorderInput ReorderOutput Scatter "
    "ScatterElements ScatterND SplitToSequence StringConcat StringNormalizer StringSplit "
    "TensorScatter Trilu Unique Where"
)


@dataclass(frozen=True)
class Cost:
    """Operations, bytes read and bytes written of one run of a node."""

    flops: float = 0
    read: float = 0
    written: float = 0
    basis: Basis = "rule"

    @property
    def bytes(self) -> float:
        return self.read + self.written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.read + other.read,
            self.written + other.written,
            max(self.basis, other.basis, key=_WORSE.index),
        )

    def times(self, count: int) -> Cost:
        return replace(
            self, flops=self.flops * count, read=self.read * count, written=self.written * count
        )


@dataclass(frozen=True)
class NodeCost:
    """A node of the main graph and what it costs, its subgraphs included."""

    name: str
    operator: str  # "Conv", "com.microsoft::FusedConv"
    cost: Cost


@dataclass(frozen=True)
class Costs:
    """What a model costs in one run: in total, by node and by operator."""

    nodes: list[NodeCost]
    parameters: int  # elements of all weights
    parameter_bytes: int
    sizes: dict[str, int] = field(default_factory=dict)  # what dynamic dimensions were taken to be

    @property
    def total(self) -> Cost:
        return sum((node.cost for node in self.nodes), Cost())

    @property
    def flops(self) -> float:
        return self.total.flops

    @property
    def operators(self) -> dict[str, Cost]:
        """The cost of each operator, the dearest first."""
        found: dict[str, Cost] = {}
        for node in self.nodes:
            found[node.operator] = found.get(node.operator, Cost()) + node.cost
        return dict(sorted(found.items(), key=lambda pair: -pair[1].flops))

    def count(self, basis: Basis) -> int:
        """How many nodes' costs have this basis."""
        return sum(node.cost.basis == basis for node in self.nodes)


def model_costs(model: ir.Model, sizes: Mapping[str, int] | None = None) -> Costs:
    """What one run of a model costs. A dynamic dimension is `sizes[name]`, or 1.

    A size is given by the dimension's name ("batch"), or by input and place ("image:0"). The
    model is not changed.
    """
    model = model.clone()
    if model.functions:
        _mark_calls(model)
        InlinePass()(model)
    taken = fix_inputs(model, sizes or {})
    infer_computed_shapes(infer_from_inputs(model, numbers=True))
    tensors = [tensor for _, tensor in stored_tensors(model)]
    return Costs(
        [NodeCost(node.name or "", _counted_as(node), node_cost(node)) for node in model.graph],
        parameters=sum(tensor.size for tensor in tensors),
        parameter_bytes=sum(tensor.nbytes for tensor in tensors),
        sizes=taken,
    )


def fix_inputs(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, int]:
    """Give every dynamic dimension of the inputs a size, 1 if none is given; returns the sizes."""
    taken: dict[str, int] = {}
    for value in model.graph.inputs:
        for place, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim):
                by_place = f"{value.name}:{place}"
                name = by_place if by_place in sizes or dim.value is None else str(dim.value)
                taken[name] = sizes.get(name, 1)
    for graph in model.graphs():
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.outputs, *made):
            if value.shape is not None:
                value.shape = ir.Shape(
                    [_taken(value, place, dim, taken) for place, dim in enumerate(value.shape)]
                )
    return taken


def _taken(value: ir.Value, place: int, dim: Any, taken: Mapping[str, int]) -> Any:
    if isinstance(dim, int):
        return dim
    return taken.get(f"{value.name}:{place}", taken.get(str(dim.value), dim))


def _mark_calls(model: ir.Model) -> None:
    """Mark the nodes of composites' bodies with their call, which costs what its body costs."""
    for function in model.functions.values():
        if function.domain == COMPOSITES:
            for node in function.graph:
                node.metadata_props[_CALL] = f"{function.domain}::{function.name}"


def _counted_as(node: ir.Node) -> str:
    return node.metadata_props.get(_CALL) or operator(node)


def operator(node: ir.Node) -> str:
    """An operator's name, with its domain unless it is ONNX's default."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


Shapes = Callable[[ir.Value], Tensor]


def declared(value: ir.Value) -> Tensor:
    """A value's type and shape as the graph declares them."""
    if value.const_value is not None:
        tensor = value.const_value
        return Tensor(tensor.dtype, tuple(int(size) for size in tensor.shape.numpy()))
    dims = [dim for dim in value.shape or () if isinstance(dim, int) and dim >= 0]
    known = value.shape is not None and len(dims) == len(value.shape)
    return Tensor(value.dtype, tuple(dims) if known else None)


def is_view(node: ir.Node) -> bool:
    """Whether engines give a node's output the memory of its input."""
    return node.op_type in _VIEWS


def node_cost(node: ir.Node, shapes: Shapes = declared) -> Cost:
    """What one run of a node costs; `shapes` returns the type and shape of each value."""
    inner = bodies(node)
    if inner:
        return _control(node, inner, shapes)
    call = NodeCall(
        node,
        tuple(None if value is None else shapes(value) for value in node.inputs),
        tuple(shapes(value) if value.name else None for value in node.outputs),
    )
    try:
        return call_cost(call)
    except (UnknownShape, IndexError):
        return Cost(basis="unknown")


def call_cost(call: NodeCall) -> Cost:
    """What a node costs on these tensors; raises UnknownShape if a shape is missing."""
    node = call.node
    if is_view(node):
        return Cost()
    if node.op_type in _OF_MAPS and node.domain == DOMAIN:  # a map's bytes are unknown
        side = (call.input(0) if node.op_type == "ZipMap" else call.out).nbytes
        return Cost(0, side, side)
    written = sum(tensor.nbytes for tensor in call.outputs if tensor is not None)
    read = sum(tensor.nbytes for tensor in call.inputs if tensor is not None)
    if node.op_type in _PICKS and call.has(0):
        read += min(written, call.input(0).nbytes) - call.input(0).nbytes
    if node.op_type in _MOVES or node.op_type in _PICKS:
        return Cost(0, read, written)
    rule = FLOPS.find(node.domain, node.op_type, _NEWEST)
    if rule is not None:
        return Cost(rule(call), read, written)
    return Cost(call.out.size, read, written, "estimate")


def _control(node: ir.Node, inner: list[ir.Graph], shapes: Shapes) -> Cost:
    """The dearer branch of an If; a loop's body as often as it is known to run, else once."""
    each = [sum((node_cost(n, shapes) for n in body), Cost()) for body in inner]
    if node.op_type == "If":
        return max(each, key=lambda cost: (cost.flops, cost.bytes))
    trips = _trips(node, shapes)
    total = sum(each, Cost()).times(1 if trips is None else trips)
    if trips is None:
        return total + Cost(basis="once")
    return total + Cost(basis="estimate") if changes_sizes(node, inner) else total


def _trips(node: ir.Node, shapes: Shapes) -> int | None:
    """How often a body runs, if the model fixes it: a constant bound, or the length of a scan."""
    if node.op_type == "Loop":
        limit, condition = (*node.inputs, None, None)[:2]
        bound = node.meta.get(TRIPS, _constant(limit))
        if bound is None or not (
            condition is None or (_constant(condition) and _always_continues(node))
        ):
            return None
        return max(0, int(bound))
    if node.op_type == "Scan":
        return scan_length(node, lambda value: shapes(value).shape)
    return None


def _constant(value: ir.Value | None) -> int | None:
    """The one number of a constant."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return int(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _always_continues(loop: ir.Node) -> bool:
    """Whether a loop's body returns its condition unchanged."""
    body = loop.attributes["body"].as_graph()
    value = origin(body.outputs[0], standard({"Identity"}))
    return value is body.inputs[1] or bool(_constant(value))
