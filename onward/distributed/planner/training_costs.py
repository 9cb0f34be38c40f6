"""The activations and the FLOPs of a program's train graph, for any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onward.errors import OptionError
from onward.graph.costs.flops import UnknownShape
from onward.graph.costs.node_costs import declared, fix_inputs, node_cost
from onward.graph.lifetimes import lifetimes
from onward.graph.random_feeds import check_sizes, names_of_size
from onward.graph.scopes import reads
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.value_dependent import infer_computed_shapes
from onward.measure.memory.budget import VIEWS
from onward.passes.drop_unused import drop_unused
from onward.programs.program import LOSS, Program
from onward.programs.recompute import recompute_cheap_values

Names = Sequence[str]
_PRIMES = (499, 503, 509, 521, 523, 541, 547, 557)
_COPY = "/again"  # how names continue that recomputation gives to copies


@dataclass(frozen=True, kw_only=True)
class BucketFlops:
    """The FLOPs of the forward and the backward segment of one bucket."""

    forward: float
    backward: float


@dataclass(frozen=True)
class SizedGraph:
    """The train graph for one number of rows, its calls written out: bytes and FLOPs.

    With a dynamic batch, `rows` is a prime that divides no other size: what it divides grows with
    the rows, what it divides twice with their square, and the rest is constant.
    """

    rows: int
    model: ir.Model = field(repr=False)
    flops: list[float] = field(repr=False)  # of each node
    nbytes: dict[str, int] = field(repr=False)  # of each value
    unknown: int  # nodes whose cost is not known

    def at(self, number: float, rows: int) -> float:
        """A number of this graph, as it is with other rows."""
        while number and rows != self.rows and number % self.rows == 0:
            return self.at(number / self.rows, rows) * rows
        return number


@dataclass(frozen=True)
class TrainingCosts:
    """What a step costs one process, by the rows of its batch."""

    program: Program = field(repr=False)
    train: ir.Model = field(repr=False)  # the train graph without unused nodes
    sized: SizedGraph
    sizes: dict[str, int]  # of dynamic dimensions that are not the batch
    fixed: int | None = None  # the only number of rows that the model takes

    def activations(self, rows: int) -> int:
        """The most bytes of values that are alive at once, without gradients of parameters."""
        return self._peak(self.train, rows)

    def recomputed_activations(self, rows: int) -> int:
        """The same, if the backward pass computed cheap values again."""
        layout, train = self.program.layout, self.train.clone()
        outputs = [LOSS, *layout.outputs, *layout.state.values()]
        recompute_cheap_values(train, outputs, self.bytes_of(rows))
        return self._peak(train, rows)

    def bytes_of(self, rows: int) -> Callable[[ir.Value], int]:
        """The bytes of a value of the train graph; of a copy, those of its original."""

        def nbytes(value: ir.Value) -> int:
            name = str(value.name)
            if name not in self.sized.nbytes:
                name = name.partition(_COPY)[0]
            return int(self.sized.at(self.sized.nbytes.get(name, 0), rows))

        return nbytes

    def flops(self, rows: int) -> float:
        """The FLOPs of a forward and a backward pass."""
        return sum(self.sized.at(each, rows) for each in self.sized.flops)

    def bucket_flops(self, buckets: Sequence[Names], rows: int) -> list[BucketFlops]:
        """The FLOPs of the segments of each bucket."""
        gradients = {each.name: each.gradient for each in self.program.layout.parameters}
        flops = [self.sized.at(each, rows) for each in self.sized.flops]
        return divide_flops(self.sized.model.graph, flops, buckets, gradients)

    def _peak(self, train: ir.Model, rows: int) -> int:
        elsewhere = {each.gradient for each in self.program.layout.parameters}
        return peak_bytes(train, self.bytes_of(rows), elsewhere)


def measure_costs(program: Program, sizes: Mapping[str, int] | None = None) -> TrainingCosts:
    """Infer the sizes of the values of a program's train graph.

    `sizes` are those of dynamic dimensions other than the batch, by name ("time") or by input and
    place ("tokens:1"); what is not given is 1. A model with a fixed batch has that number of rows.
    """
    batch, others = _dynamic_sizes(program, sizes or {})
    fixed = None if batch else _fixed_rows(program)
    rows = fixed or _unlike_other_sizes(program, others)
    train = drop_unused(program.train.clone())  # as engines do
    sized = _size_graph(train, rows, {**others, **dict.fromkeys(batch, rows)})
    return TrainingCosts(program, train, sized, others, fixed)


def peak_bytes(
    model: ir.Model, nbytes: Callable[[ir.Value], int], elsewhere: Collection[str]
) -> int:
    """The most bytes that are alive at once; values of `elsewhere` are in memory of their own."""

    def counted(value: ir.Value) -> int:
        return 0 if value.name in elsewhere else nbytes(value)

    return lifetimes(model.graph, VIEWS, counted).peak


def divide_flops(
    graph: ir.Graph,
    flops: Sequence[float],
    buckets: Sequence[Names],
    gradients: Mapping[str, str],
) -> list[BucketFlops]:
    """The FLOPs of each bucket's segments, as the graph is cut for them.

    A backward node is in the segment of the first bucket whose gradients need it, a forward node in
    that of the last bucket, in the order of the forward pass, whose parameters it needs.
    """
    last = len(buckets) - 1
    of_gradient = {gradients[name]: i for i, names in enumerate(buckets) for name in names}
    needed_by = {value: of_gradient.get(str(value.name), -1) for value in graph.outputs}
    nodes = list(graph)
    segment: dict[ir.Node, int] = {}
    for node in reversed(nodes):
        first = segment[node] = min(
            needed_by[value] for value in node.outputs if value in needed_by
        )
        for value in reads(node):
            needed_by[value] = min(needed_by.get(value, first), first)
    of_parameter = {name: last - i for i, names in enumerate(buckets) for name in names}
    position = {value: of_parameter.get(str(value.name), 0) for value in graph.inputs}
    forward, backward = [0.0] * len(buckets), [0.0] * len(buckets)
    for node, cost in zip(nodes, flops, strict=True):
        if segment[node] >= 0:
            backward[segment[node]] += cost
            continue
        at = max((position.get(value, 0) for value in reads(node)), default=0)
        position.update(dict.fromkeys(node.outputs, at))
        forward[last - at] += cost
    return [BucketFlops(forward=f, backward=b) for f, b in zip(forward, backward, strict=True)]


# -- sizes ----------------------------------------------------------------------------------------


def _size_graph(train: ir.Model, rows: int, sizes: Mapping[str, int]) -> SizedGraph:
    model = train.clone()
    if model.functions:
        InlinePass()(model)
        drop_unused(model)
    fix_inputs(model, sizes)
    infer_computed_shapes(infer_from_inputs(model, numbers=True))
    costs = [node_cost(node) for node in model.graph]
    nbytes = {}
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        try:
            nbytes[str(value.name)] = declared(value).nbytes
        except UnknownShape:
            continue
    unknown = sum(cost.basis == "unknown" for cost in costs)
    return SizedGraph(rows, model, [cost.flops for cost in costs], nbytes, unknown)


def _feeds(program: Program) -> list[ir.Value]:
    """The inputs of the train graph that are data: not parameters, statistics or settings."""
    layout = program.layout
    known = {*layout.inputs, *layout.targets}
    return [value for value in program.train.graph.inputs if value.name in known]


def _dynamic_sizes(program: Program, given: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """The names of the batch's dimension, and the sizes of the other dynamic ones, 1 if not given.

    The batch is what is called so ("batch", "batch_size"), else the first dimension of inputs.
    """
    dims = [
        (
            place,
            names_of_size(str(value.name), place, None if dim.value is None else str(dim.value)),
        )
        for value in _feeds(program)
        for place, dim in enumerate(value.shape or ())
        if isinstance(dim, ir.SymbolicDim)
    ]
    check_sizes(given, {name for _, names in dims for name in names})
    free = [(place, names) for place, names in dims if not set(names) & set(given)]
    called = [names for _, names in free if any("batch" in name.lower() for name in names[1:])]
    first = [names for place, names in free if place == 0]
    if called:  # and first dimensions without a name, such as those of targets
        first = called + [names for names in first if len(names) == 1]
    batch = list(dict.fromkeys(names[-1] for names in first))
    others = {
        next((name for name in names if name in given), names[-1]): next(
            (given[name] for name in names if name in given), 1
        )
        for _, names in dims
        if names[-1] not in batch or set(names) & set(given)
    }
    return batch, others


def _unlike_other_sizes(program: Program, others: Mapping[str, int]) -> int:
    """A prime that divides no size of the model's tensors."""
    values = [*program.train.graph.inputs, *program.train.graph.initializers.values()]
    dims = {dim for value in values for dim in value.shape or () if isinstance(dim, int)}
    dims |= {*others.values()}
    return next((p for p in _PRIMES if all(dim % p for dim in dims if dim)), _PRIMES[0])


def _fixed_rows(program: Program) -> int:
    """The first dimension of the inputs."""
    for value in _feeds(program):
        if value.shape is not None and len(value.shape) and isinstance(value.shape[0], int):
            return int(value.shape[0])
    raise OptionError(
        "no input of the model has a batch dimension, so a batch cannot be divided\n"
        "export the model with the batch as first dimension"
    )
