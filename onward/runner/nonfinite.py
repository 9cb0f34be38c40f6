"""find_nonfinite: name the node that made the first NaN or infinity of a training step.

    results = session.step(feeds)            # gradients are not finite: no update was made
    print(find_nonfinite(session, feeds))
    # Log 'log_1' (output 'log_1_out') made 3 inf of 128 numbers; its input 'x' ranges from 0 to 4.1

The training graph runs again on ONNX Runtime, whichever engine the session has, with two numbers
added for every value: they say whether it has a NaN or an infinity. Only the values around the node
that is found are then read as a whole, so that a large model needs no more memory than its step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.graph_ops import extend
from onward.programs.program import Array
from onward.runner.data.batches import DataBatch
from onward.runner.training_graph import run_unoptimized, training_graph
from onward.sessions.training.session import TrainingSession

_NAN, _BAD = "onward.nan/", "onward.bad/"  # prefixes of the added outputs


@dataclass(frozen=True)
class TensorRange:
    """The least and the largest number of a tensor, and how many are not finite."""

    name: str
    low: float  # of those that are not NaN
    high: float
    nan: int
    inf: int
    size: int

    @classmethod
    def of(cls, name: str, values: Any) -> TensorRange:
        numbers = np.asarray(values).astype(np.float64).reshape(-1)
        nan, inf = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
        known = numbers[~np.isnan(numbers)]
        low, high = (known.min(), known.max()) if known.size else (math.nan, math.nan)
        return cls(name, float(low), float(high), nan, inf, numbers.size)

    @property
    def bad(self) -> str:
        """
        >>> TensorRange("x", 0, math.inf, 2, 3, 128).bad
        '2 nan and 3 inf of 128 numbers'
        """
        counts = [f"{n} {word}" for n, word in ((self.nan, "nan"), (self.inf, "inf")) if n]
        return f"{' and '.join(counts)} of {self.size} numbers"

    def __str__(self) -> str:
        nan = f", with {self.nan} nan" if self.nan else ""
        return f"{self.name!r} ranges from {self.low:.6g} to {self.high:.6g}{nan}"


@dataclass(frozen=True)
class NonFinite:
    """Where the first NaN or infinity of a step comes from: a feed, a parameter or a node."""

    kind: str  # "feed", "parameter", or the node's operator
    name: str  # of the feed, the parameter or the node
    values: TensorRange  # of the feed, the parameter, or the node's output
    inputs: tuple[TensorRange, ...] = ()  # of the node
    rows: tuple[int, ...] = ()  # of the feed

    @property
    def is_node(self) -> bool:
        return self.kind not in ("feed", "parameter")

    def __str__(self) -> str:
        if not self.is_node:
            rows = ", ".join(map(str, self.rows[:8])) + ", ..." * (len(self.rows) > 8)
            where = f", in row{'s' * (len(self.rows) > 1)} {rows}" if self.rows else ""
            return f"{self.kind} {self.name!r} has {self.values.bad}{where}"
        made = f"{self.kind} {self.name!r} (output {self.values.name!r}) made {self.values.bad}"
        if not self.inputs:
            return made
        word = "its input" if len(self.inputs) == 1 else "its inputs:"
        return f"{made}; {word} {', '.join(map(str, self.inputs))}"


def find_nonfinite(session: TrainingSession, feeds: Mapping[str, Any]) -> NonFinite | None:
    """The origin of a NaN or infinity in the last step of a session, which made no update.

    Feeds and parameters come first, then nodes in the order of execution: forward, then backward.
    None if every value is finite, as where only the sum of accumulated gradients overflows.
    """
    for name, feed in feeds.items():
        array = np.asarray(feed)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = ~np.isfinite(array.reshape(array.shape[0] if array.ndim else 1, -1)).all(axis=1)
            rows = tuple(np.flatnonzero(bad).tolist()) if array.ndim else ()
            return NonFinite("feed", name, TensorRange.of(name, array), rows=rows)
    for held in (session.parameters, session.statistics):
        for name in held:
            found = TensorRange.of(name, held[name])
            if found.nan or found.inf:
                return NonFinite("parameter", name, found)
    return _find_node(*training_graph(session, feeds))


def locate_nonfinite(found: NonFinite, batch: DataBatch) -> str:
    """What was found, with the rows of the data: those of a bad feed, or all of the batch."""
    rows = batch.positions[list(found.rows)] if found.rows else batch.positions
    listed = ", ".join(str(int(each)) for each in rows[:4]) + ", ..." * (len(rows) > 4)
    return f"row{'s' * (len(rows) > 1)} {listed}: {replace(found, rows=())}"


def _find_node(model: ir.Model, inputs: Mapping[str, Array]) -> NonFinite | None:
    nodes = list(model.graph)
    own = list(model.graph.outputs)
    floats = [value for node in nodes for value in node.outputs if _is_float(value)]
    _add_checks(model, floats)
    numbers = run_unoptimized(model, inputs)
    nan = {str(v.name) for v in floats if numbers[f"{_NAN}{v.name}"] > 0}
    bad = {str(v.name) for v in floats if not np.isfinite(numbers[f"{_BAD}{v.name}"])}
    for value in model.graph.initializers.values():  # such as the -inf of a mask
        if _is_float(value) and value.const_value is not None:
            found = TensorRange.of("", value.const_value.numpy())
            nan |= {str(value.name)} if found.nan else set()
            bad |= {str(value.name)} if found.nan or found.inf else set()
    blamed = _reaching(own, bad)
    for node in nodes:
        read = {str(value.name) for value in node.inputs if value is not None}
        for output in node.outputs:
            name = str(output.name)
            if name in blamed and ((name in nan and not read & nan) or not read & bad):
                return _describe(model, node, output, inputs)
    return None


def _reaching(outputs: Sequence[ir.Value], bad: set[str]) -> set[str]:
    """The bad values from which others lead to the loss, a gradient or a statistic.

    An infinity that a later node removes, as Softmax does with a mask, is not a fault.
    """
    waiting = [value for value in outputs if value.name in bad]
    found: set[str] = set()
    while waiting:
        value = waiting.pop()
        if value.name in found:
            continue
        found.add(str(value.name))
        node = value.producer()
        waiting += [v for v in (node.inputs if node else ()) if v is not None and v.name in bad]
    return found


def _describe(
    model: ir.Model, node: ir.Node, output: ir.Value, inputs: Mapping[str, Array]
) -> NonFinite:
    """Read the values around a node, in a run of their own."""
    read = [v for v in dict.fromkeys(node.inputs) if v is not None and _is_float(v)]
    model.graph.outputs[:] = [output, *(v for v in read if v.producer() is not None)]
    found: dict[str, Any] = {**inputs, **run_unoptimized(model, inputs)}
    for value in read:
        if value.const_value is not None:
            found[str(value.name)] = value.const_value.numpy()
    ranges = [TensorRange.of(str(value.name), found[str(value.name)]) for value in (output, *read)]
    return NonFinite(node.op_type, str(node.name or ""), ranges[0], tuple(ranges[1:]))


def _add_checks(model: ir.Model, values: Sequence[ir.Value]) -> None:
    """Let the graph return two numbers for each value, instead of its outputs."""
    op = extend(model)
    op.prefix = "finite"
    checks = []
    for value in values:
        number = value
        if value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            number = op.Cast(value, to=int(ir.DataType.FLOAT))
        nan = op.ReduceSum(op.Cast(op.IsNaN(number), to=int(ir.DataType.FLOAT)), keepdims=0)
        zero = np.zeros((), (number.dtype or ir.DataType.FLOAT).numpy())
        bad = op.ReduceSum(op.Mul(number, zero), keepdims=0)  # 0 * inf is NaN
        nan.name, bad.name = f"{_NAN}{value.name}", f"{_BAD}{value.name}"
        checks += [nan, bad]
    model.graph.outputs[:] = checks


def _is_float(value: ir.Value) -> bool:
    return bool(value.name) and value.dtype in FLOATS and isinstance(value.type, ir.TensorType)
