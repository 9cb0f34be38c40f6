"""A weighted sum of losses, an output of the model as the loss, and a user's graph as the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.files import Source
from onward.graph.graph_ops import GraphOps
from onward.losses.inlining import inline
from onward.losses.loss import Loss, Values, read_as_is, scalar, shown, sizes_of
from onward.settings import check_fields, nonempty_name, optional

Part: TypeAlias = "Loss | tuple[Loss, float]"
Parts: TypeAlias = dict[str, ir.Value]


@dataclass(frozen=True)
class Output:
    """An output of the model that is already the loss.

    Attributes:
        name: the output that is the loss; None: the first one

    >>> Output("loss")
    Output(name='loss')
    """

    name: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, name=optional(nonempty_name))

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        return scalar(op, self, read_as_is(op, self, values, self.name))


@dataclass(frozen=True)
class Graph:
    """A custom loss: a function (op, values) -> value, or an ONNX model.

    Inputs of a loss model that have the names of the model's values read those; the others become
    new inputs. Its first output is the loss. Other names in it may be the same as the model's.

    Attributes:
        graph: a function (op, values) -> value, or a model as a path, bytes or an object

    >>> Graph(lambda op, values: op.ReduceMean(op.Abs(values["y"]), keepdims=0)).build
    <bound method Graph.build of Graph(...)>
    """

    graph: Callable[[GraphOps, Values], ir.Value] | Source

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        if not callable(self.graph):
            return scalar(op, self, inline(op, self, self.graph, values))
        found = self.graph(op, values)
        if not isinstance(found, ir.Value):
            raise OptionError(
                f"the function of Graph returned {type(found).__name__}, not a value\n"
                "return what op's last operator returned"
            )
        return scalar(op, self, found)


@dataclass(frozen=True)
class Total:
    """The weighted sum of several losses, by name: {"digit": CrossEntropy(), "size": (MSE(), 0.1)}.

    A loss without a weight has weight 1. In a list, losses are named by their classes. Losses with
    the same target share the input. `build_with_parts` also returns each part.

    Attributes:
        parts: losses, or (loss, weight) pairs, by name or in a list

    >>> from onward.losses.regression import L1, MSE
    >>> list(Total([MSE(), (L1(target="other"), 0.5)]).parts)
    ['MSE', 'L1']
    """

    parts: Mapping[str, Part] | Sequence[Part]

    def __post_init__(self) -> None:
        given = self.parts
        if not isinstance(given, (Mapping, Sequence)) or isinstance(given, str):
            raise OptionError(
                f"Total takes a dict of losses by name, or a list of losses, not {given!r}\n"
                'for example: Total({"digit": CrossEntropy(), "size": (MSE(), 0.1)})'
            )
        pairs = given.items() if isinstance(given, Mapping) else _named(given)
        object.__setattr__(self, "parts", {name: _weighted(name, part) for name, part in pairs})
        if not self.parts:
            raise OptionError("Total needs at least one loss, and none was given")

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        return self.add_up(op, self.build_parts(op, values))

    def build_parts(self, op: GraphOps, values: Values) -> Parts:
        """Each loss by name, without its weight, as a separate value that can be an output."""
        built: Parts = {}
        for name, loss, _ in self._each():
            value = loss.build(op, values)
            if sizes_of(value):
                raise OptionError(
                    f"part {name!r} of Total has shape {shown(value)}: "
                    "parts must be single numbers\n"
                    "give it the reduction 'mean' or 'sum'"
                )
            known = value.producer() is None or value.is_graph_output() or value in built.values()
            built[name] = op.Identity(value) if known else value
        return built

    def add_up(self, op: GraphOps, parts: Parts) -> ir.Value:
        """weight part + ..., in the widest type among them"""
        values = list(parts.values())
        widest = max(values, key=lambda value: value.dtype.itemsize if value.dtype else 0)
        terms = []
        for name, _, weight in self._each():
            term = op.cast_like(parts[name], widest)
            terms.append(op.Mul(term, weight) if weight != 1 else term)
        return op.Sum(*terms)

    def losses(self) -> list[Loss]:
        """The losses in the sum."""
        return [loss for _, loss, _ in self._each()]

    def _each(self) -> Iterator[tuple[str, Loss, float]]:
        parts: Any = self.parts  # __post_init__ normalised them
        for name, (loss, weight) in parts.items():
            yield name, loss, weight


def build_with_parts(loss: Loss, op: GraphOps, values: Values) -> tuple[ir.Value, Parts]:
    """A loss and its parts by name; only a Total has parts."""
    if not _is_loss(loss):
        raise OptionError(
            f"a loss has a method build(op, values), and {loss!r} has none\n"
            "give one of onward.losses, such as CrossEntropy(), or Graph(function) for your own"
        )
    if not isinstance(loss, Total):
        return loss.build(op, values), {}
    parts = loss.build_parts(op, values)
    return loss.add_up(op, parts), parts


def _is_loss(given: Any) -> bool:
    return hasattr(given, "build") and not isinstance(given, type)


def _named(parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    """MSE, L1, MSE_2, ..."""
    seen: dict[str, int] = {}
    for part in parts:
        name = type(part[0] if isinstance(part, tuple) else part).__name__
        seen[name] = seen.get(name, 0) + 1
        yield (f"{name}_{seen[name]}" if seen[name] > 1 else name), part


def _weighted(name: str, part: Part) -> tuple[Loss, float]:
    pair = part if isinstance(part, tuple) else (part, 1.0)
    loss, weight = pair if len(pair) == 2 else (None, None)
    if not isinstance(name, str) or not name:
        raise OptionError(f"a part of Total has the name {name!r}: a name must be a non-empty str")
    if not _is_loss(loss):
        raise OptionError(
            f"part {name!r} of Total must be a loss, or a pair (loss, weight), not {part!r}\n"
            'for example: Total({"digit": CrossEntropy(), "size": (MSE(), 0.1)})'
        )
    if not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise OptionError(
            f"the weight of part {name!r} of Total must be a finite number, not {weight!r}"
        )
    return loss, float(weight)
