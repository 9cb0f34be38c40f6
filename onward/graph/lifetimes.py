"""Compute when each value of a graph is allocated and freed, in which buffer, and the peak memory.

A graph runs node by node, in its own order. A value is born when its node runs and dies after its
last reader; what an engine does beyond that (alias an input, write in place) is given as
`MemoryRules`. Feeds and weights are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.scopes import bodies, reads

Pairs = tuple[tuple[int, int], ...]  # (input, output) of a node that share a buffer
Sizes = Callable[[ir.Value], int]  # the bytes of a value


@dataclass(frozen=True)
class MemoryRules:
    """What an engine does with memory. Operators of other domains are written "domain::Name"."""

    aliases: Mapping[str, Pairs] = field(default_factory=dict)  # the output is the input's memory
    in_place: Mapping[str, Pairs] = field(default_factory=dict)  # ... if no other node reads it


@dataclass
class Buffer:
    """Memory of one value, or of several one after another."""

    name: str  # of the value that it was made for
    nbytes: int
    birth: int  # the step that makes it
    death: int  # the last step that needs it
    is_output: bool = False  # the caller keeps it
    values: list[str] = field(default_factory=list)


@dataclass
class NodeLiveBytes:
    """One node: buffers born, buffers that die after it, and the bytes live while it runs."""

    name: str
    op_type: str
    node: ir.Node
    births: list[int] = field(default_factory=list)  # numbers of buffers
    deaths: list[int] = field(default_factory=list)
    inner: Lifetimes | None = None  # of the subgraph with the highest peak
    live: int = 0  # bytes, those of a subgraph included


@dataclass
class Lifetimes:
    """The lifetime of every buffer of a graph."""

    buffers: list[Buffer]
    steps: list[NodeLiveBytes]

    @property
    def peak(self) -> int:
        """The most bytes that live at once."""
        return max((step.live for step in self.steps), default=0)

    @property
    def outputs(self) -> int:
        """The bytes of the graph's outputs."""
        return sum(buffer.nbytes for buffer in self.buffers if buffer.is_output)


def lifetimes(graph: ir.Graph, rules: MemoryRules, nbytes: Sizes) -> Lifetimes:
    """The lifetimes of a graph's values, in the order of its nodes."""
    return _Walk(graph, rules, nbytes).walk()


def spelled(node: ir.Node) -> str:
    """A node's operator as `MemoryRules` names it."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


class _Walk:
    """The state of one walk: each value's buffer, and each buffer's remaining uses."""

    def __init__(self, graph: ir.Graph, rules: MemoryRules, nbytes: Sizes) -> None:
        self._graph, self._rules, self._nbytes = graph, rules, nbytes
        self._given = {*graph.inputs, *graph.initializers.values()}
        self._outputs = set(graph.outputs)
        self._uses = _count_uses(graph)
        self._home: dict[ir.Value, int | None] = {}  # None: memory of a feed or a weight
        self._left: list[int] = []  # uses of each buffer that are still to come
        self._buffers: list[Buffer] = []

    def walk(self) -> Lifetimes:
        steps: list[NodeLiveBytes] = []
        for number, node in enumerate(self._graph):
            step = NodeLiveBytes(node.name or "", node.op_type, node)
            for place, value in enumerate(node.outputs):
                if value.name:
                    self._place(node, place, value, step, number)
            step.inner = _largest_body(node, self._rules, self._nbytes)
            steps.append(step)
            self._release(node, number)
        end = len(steps) - 1
        for buffer, left in zip(self._buffers, self._left, strict=True):
            buffer.death = end if left > 0 else buffer.death
        for number, buffer in enumerate(self._buffers):
            if not buffer.is_output:
                steps[buffer.death].deaths.append(number)
        _sum_live_bytes(steps, self._buffers)
        return Lifetimes(self._buffers, steps)

    def _place(
        self, node: ir.Node, place: int, value: ir.Value, step: NodeLiveBytes, number: int
    ) -> None:
        """Find the buffer of an output: a new one, or an input's."""
        home = None if value in self._outputs else self._shared(node, place, value)
        if home is not None:
            found = home[0]
            self._home[value] = found
            if found is not None:
                self._left[found] += self._uses[value]
                self._buffers[found].values.append(str(value.name))
            return
        self._home[value] = len(self._buffers)
        step.births.append(len(self._buffers))
        is_output = value in self._outputs
        size = self._nbytes(value)
        name = str(value.name)
        self._buffers.append(Buffer(name, size, number, number, is_output, [name]))
        self._left.append(self._uses[value])

    def _shared(self, node: ir.Node, place: int, value: ir.Value) -> tuple[int | None] | None:
        """The buffer that an output shares, as a tuple; None if it needs a new one."""
        operator = spelled(node)
        for source, target in self._rules.aliases.get(operator, ()):
            given = node.inputs[source] if source < len(node.inputs) else None
            if target == place and given is not None:
                return (self._home.get(given),)
        for source, target in self._rules.in_place.get(operator, ()):
            given = node.inputs[source] if source < len(node.inputs) else None
            if target != place or given is None or given in self._given:
                continue
            home = self._home.get(given)
            if home is not None and self._left[home] == 1 and _same_size(given, value):
                return (home,)
        return None

    def _release(self, node: ir.Node, number: int) -> None:
        """Subtract this node's uses; a buffer without uses dies with its last one."""
        for value in _occurrences(node):
            home = self._home.get(value)
            if home is None:
                continue
            self._left[home] -= 1
            self._buffers[home].death = number


def _occurrences(node: ir.Node) -> Iterator[ir.Value]:
    """The values of a node, repeated as used: inputs, captured values, outputs."""
    direct = [value for value in node.inputs if value is not None]
    yield from direct
    if bodies(node):
        yield from (value for value in reads(node) if value not in direct)
    yield from (value for value in node.outputs if value.name)


def _count_uses(graph: ir.Graph) -> Counter[ir.Value]:
    """How often each value is used; once more for what the caller holds, so that it never dies."""
    uses = Counter(value for node in graph for value in _occurrences(node))
    uses.update({*graph.inputs, *graph.initializers.values()})
    uses.update(set(graph.outputs))
    return uses


def _same_size(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are known to have the same size: equal in each dimension."""
    if a.dtype is None or b.dtype is None or a.shape is None or b.shape is None:
        return False
    if ir.DataType.STRING in (a.dtype, b.dtype) or a.dtype.itemsize != b.dtype.itemsize:
        return False
    pairs = zip(a.shape, b.shape, strict=False)
    return len(a.shape) == len(b.shape) and all(map(_same_dim, *zip(*pairs, strict=True)))


def _same_dim(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    if isinstance(a, ir.SymbolicDim) or isinstance(b, ir.SymbolicDim):
        return (
            isinstance(a, ir.SymbolicDim)
            and isinstance(b, ir.SymbolicDim)
            and a.value is not None
            and a.value == b.value
        )
    return a == b


def _largest_body(node: ir.Node, rules: MemoryRules, nbytes: Sizes) -> Lifetimes | None:
    """The subgraph with the highest peak: only one branch of an If runs.

    A branch's outputs are its If's outputs, and are counted there.
    """

    def inside(value: ir.Value) -> int:
        return 0 if node.op_type == "If" and value.is_graph_output() else nbytes(value)

    inner = [lifetimes(body, rules, inside) for body in bodies(node)]
    return max(inner, key=lambda lives: lives.peak, default=None)


def _sum_live_bytes(steps: list[NodeLiveBytes], buffers: list[Buffer]) -> None:
    live = 0
    for step in steps:
        live += sum(buffers[number].nbytes for number in step.births)
        step.live = live + (step.inner.peak if step.inner else 0)
        live -= sum(buffers[number].nbytes for number in step.deaths)
