"""Count a model's nodes and constants as if its functions were inlined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from onward.errors import InvalidModel
from onward.graph.scan.folded_sizes import Growth

FunctionId = tuple[str, str, str]  # domain, name and overload of a function


@dataclass(slots=True)
class CountedBody:
    """A graph or a function: its nodes, its calls, and what constant folding would make."""

    nodes: int = 0
    calls: Counter[FunctionId] = field(default_factory=Counter)
    constant_calls: set[FunctionId] = field(default_factory=set)  # called only with constants
    growth: Growth = field(default_factory=Growth)


def inlined(main: CountedBody, functions: Mapping[FunctionId, CountedBody]) -> CountedBody:
    """The main graph with each call counted as its function's body; recursion is refused."""
    done: dict[FunctionId, CountedBody] = {}
    for root in functions:
        stack = [(root, False)]
        open_calls: set[FunctionId] = set()
        while stack:
            call, left = stack.pop()
            if left:
                done[call] = _counted(functions[call], done)
                open_calls.discard(call)
            elif call in open_calls:
                raise InvalidModel(f"function {call[0]}::{call[1]} calls itself")
            elif call not in done:
                open_calls.add(call)
                stack.append((call, True))
                stack += [(each, False) for each in functions[call].calls if each in functions]
    return _counted(main, done)


def _counted(body: CountedBody, done: Mapping[FunctionId, CountedBody]) -> CountedBody:
    whole = CountedBody(body.nodes)
    whole.growth.add(body.growth, 1, True)
    for call, times in body.calls.items():
        if call in done:
            whole.nodes += (done[call].nodes - 1) * times
            whole.growth.add(done[call].growth, times, call in body.constant_calls)
    return whole
