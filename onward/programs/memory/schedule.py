"""Schedule: in which order a train graph runs its nodes if some forward nodes are repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import onnx_ir as ir

from onward.graph.scopes import bodies
from onward.programs.memory.forward_backward import ForwardBackward, is_reshape, sources

Key = tuple[ir.Value, bool]  # a value, or its copy


class ScheduledNode(NamedTuple):
    """One node that runs."""

    node: ir.Node
    again: bool  # whether it is a copy of a forward node
    before: ir.Node  # the node of the graph that it runs before, or that it is
    reads: tuple[Key, ...]


def make_schedule(parts: ForwardBackward, saved: Collection[ir.Value]) -> list[ScheduledNode]:
    """The steps of a graph whose backward computes again what it needs and is not saved.

    `saved` are storages. A node is repeated right before the first use of its results.
    """
    steps: list[ScheduledNode] = []
    copied: set[ir.Value] = set()

    def is_dropped(value: ir.Value) -> bool:
        return value in parts.place and parts.is_dropped(value, saved)

    def keys(node: ir.Node) -> tuple[Key, ...]:
        return tuple((value, is_dropped(value)) for value in sources(node))

    for node in parts.nodes:
        if node not in parts.backward:
            steps.append(ScheduledNode(node, False, node, tuple((v, False) for v in sources(node))))
            continue
        if bodies(node):
            steps.append(ScheduledNode(node, False, node, tuple((v, False) for v in sources(node))))
            continue
        for value in sources(node):
            if value not in copied and is_dropped(value):
                for each in _makers(value, is_dropped, copied):
                    steps.append(ScheduledNode(each, True, node, keys(each)))
                    copied.update(each.outputs)
        steps.append(ScheduledNode(node, False, node, keys(node)))
    return steps


def peak_of(
    steps: list[ScheduledNode],
    nbytes: Callable[[ir.Value], int],
    elsewhere: Collection[str] = (),
) -> int:
    """The most bytes of values that are alive at once; those of `elsewhere` have other memory."""
    home: dict[Key, Key] = {}
    last: dict[Key, int] = {}
    for number, step in enumerate(steps):
        for value in step.node.outputs:
            key = (value, step.again)
            home[key] = key
            if is_reshape(step.node) and step.reads:
                home[key] = home.get(step.reads[0], step.reads[0])
            last[home[key]] = number
        for key in step.reads:
            last[home.get(key, key)] = number
    ends: dict[int, list[Key]] = {}
    for key, number in last.items():
        if not (key[0].is_graph_output() and not key[1]):
            ends.setdefault(number, []).append(key)
    live = peak = 0
    for number, step in enumerate(steps):
        for value in step.node.outputs:
            if home[value, step.again] == (value, step.again) and value.name not in elsewhere:
                live += nbytes(value)
        peak = max(peak, live)
        for value, _ in ends.get(number, ()):
            if value.producer() is not None and value.name not in elsewhere:
                live -= nbytes(value)
    return peak


def _makers(
    value: ir.Value, is_dropped: Callable[[ir.Value], bool], copied: Collection[ir.Value]
) -> list[ir.Node]:
    """The nodes that compute a value from values that are not dropped, in order."""
    found: dict[ir.Node, None] = {}
    todo: list[tuple[ir.Value, bool]] = [(value, False)]
    while todo:
        each, is_ready = todo.pop()
        node = each.producer()
        assert node is not None
        if is_ready:
            found[node] = None
        elif node not in found and each not in copied:
            todo.append((each, True))
            todo += [(v, False) for v in sources(node) if v not in copied and is_dropped(v)]
    return list(found)
