"""Choose which forward values are saved for the backward pass: minimum cuts.

A value that the backward needs is saved, which takes bytes, or computed again from others, which
takes time. With a price of time, the cheapest choice is a minimum cut of the network

    source -> node        price * time of the node    cut: the node is repeated
    source -> value/in    infinite                    the value cannot be computed again
    node -> value/in -> value/out                     bytes of the value; cut: it is saved
    value/out -> node     infinite                    a node needs what it reads
    value/out -> sink     infinite                    the backward reads it
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.programs.memory.forward_backward import (
    ForwardBackward,
    can_repeat,
    is_reshape,
    sources,
    storage_of,
    storages,
)
from onward.programs.memory.minimum_cut import INFINITE, FlowNetwork
from onward.programs.memory.train_sizes import TrainSizes

_SMALL = 4096  # bytes: statistics, shapes and masks of this size always wait
_UNIT = 1 << 12  # of capacities: prices are fractions
_SOURCE, _SINK = "source", "sink"


@dataclass(frozen=True)
class SavedValueSearch:
    """The choice of saved values for one train graph."""

    parts: ForwardBackward = field(repr=False)
    sizes: TrainSizes = field(repr=False)
    may_repeat: Callable[[ir.Node], bool] = can_repeat
    forbidden: Collection[ir.Value] = ()  # the storages of values that must not be saved

    def is_free(self, value: ir.Value) -> bool:
        """Whether a value is there anyway: an input, an output of the step, or small."""
        storage = storage_of(value)
        if storage not in self.parts.place or value.is_graph_output() or storage.is_graph_output():
            return True
        return self.sizes.bytes_of(storage) <= _SMALL and storage not in self.forbidden

    def all_saved(self) -> set[ir.Value]:
        """The storages that wait for the backward if nothing is repeated."""
        return storages(self.parts.waiting)

    def cheapest(self, price: float, always: Collection[ir.Value] = ()) -> set[ir.Value]:
        """The storages to save if a byte's time costs `price` bytes; `always` are saved."""
        network = FlowNetwork()
        network.add(_SOURCE, _SINK, 0)
        todo = [value for value in self.parts.waiting if not self.is_free(value)]
        for value in todo:
            network.add((value, "out"), _SINK, INFINITE)
        seen = set(todo)
        nodes: set[ir.Node] = set()
        while todo:
            value = todo.pop()
            network.add((value, "in"), (value, "out"), self._bytes(value))
            node = value.producer()
            assert node is not None
            if not self._can_drop(value, node, always):
                network.add(_SOURCE, (value, "in"), INFINITE)
                continue
            network.add(node, (value, "in"), INFINITE)
            if node in nodes:
                continue
            nodes.add(node)
            network.add(_SOURCE, node, int(_UNIT * price * self.sizes.time_of(node)) + 1)
            for source in sources(node):
                if not self.is_free(source):
                    network.add((source, "out"), node, INFINITE)
                    if source not in seen:
                        seen.add(source)
                        todo.append(source)
        far = network.far_side(_SOURCE, _SINK)
        cut = [v for v in seen if (v, "out") in far and (v, "in") not in far]
        read = [v for node in nodes if node in far for v in sources(node)]
        return storages([*cut, *filter(self.is_free, [*self.parts.waiting, *read])])

    def repeated(self, saved: Collection[ir.Value]) -> set[ir.Node]:
        """The nodes that are repeated to compute the rest; views cost nothing."""
        found: set[ir.Node] = set()
        todo = [value for value in self.parts.waiting if self.parts.is_dropped(value, saved)]
        while todo:
            node = todo.pop().producer()
            if node is None or node in found:
                continue
            found.add(node)
            todo += [value for value in sources(node) if self.parts.is_dropped(value, saved)]
        return found

    def _bytes(self, value: ir.Value) -> int:
        storage = storage_of(value)
        if storage in self.forbidden:
            return INFINITE
        return _UNIT * self.sizes.bytes_of(storage)

    def _can_drop(self, value: ir.Value, node: ir.Node, always: Collection[ir.Value]) -> bool:
        if value in self.parts.fixed or storage_of(value) in always:
            return is_reshape(node)  # a view of what is saved
        return is_reshape(node) or self.may_repeat(node)
