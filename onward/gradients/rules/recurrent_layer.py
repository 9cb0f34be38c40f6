"""Shared parts of recurrent layers: directions, the Scan over time, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import Gradient
from onward.passes.value_facts import attribute, input_of


class RecurrentLayer:
    """A node's inputs and gradients by direction, with time as the first axis."""

    def __init__(
        self, op: GradientOps, node: ir.Node, dys: Sequence[Gradient], states: int
    ) -> None:
        self._op, self._node, self._states = op, node, states
        self._batch_first = bool(attribute(node, "layout"))
        given = attribute(node, "direction", "forward")
        self._reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
            given
        ]
        self.directions = [self._direction(d, dys) for d in range(len(self._reverse))]

    def _direction(self, d: int, dys: Sequence[Gradient]) -> Direction:
        op, node = self._op, self._node
        x = self._turned(node.inputs[0], [1, 0, 2])
        assert x is not None
        given = [*dys, *[None] * 3]
        steps = [self._turned(each, [1, 2, 0, 3]) for each in (op.output(node, 0), given[0])]
        y, dy = (self._one(each, d, 1) for each in steps)
        w, r, b = (self._one(input_of(node, i), d, 0) for i in (1, 2, 3))
        firsts = [input_of(node, 5 + i) for i in range(self._states)]
        states, dstates = (
            [self._one(self._turned(each, [1, 0, 2]), d, 0) for each in values]
            for values in (firsts, given[1 : 1 + self._states])
        )
        p = self._one(input_of(node, 7), d, 0) if node.op_type == "LSTM" else None
        return Direction(
            op,
            node,
            d,
            self._reverse[d],
            values={"x": x, "w": w, "r": r, "b": b, "y": y, "dy": dy, "p": p},
            states=states,
            dstates=dstates,
        )

    def _turned(self, x: Gradient, order: list[int]) -> Gradient:
        return _reordered(self._op, x, order) if self._batch_first else x

    def _one(self, x: Gradient, d: int, axis: int) -> Gradient:
        """The part of one direction."""
        if x is None:
            return None
        if len(self._reverse) == 1:
            return self._op.Squeeze(x, [axis])
        return self._op.Gather(x, np.int64(d), axis=axis)

    def gradients(self, found: Sequence[tuple[dict[str, Gradient], Sequence[ir.Value]]]) -> Any:
        """The gradients of the node's inputs, from those of the directions."""
        op = self._op
        dx = self._turned(op.total([part["x"] for part, _ in found if part["x"]]), [1, 0, 2])
        dw, dr, db, dp = (
            self._stacked([part[n] for part, _ in found]) for n in ("w", "r", "b", "p")
        )
        starts = [
            self._turned(self._stacked([states[i] for _, states in found]), [1, 0, 2])
            for i in range(self._states)
        ]
        return dx, dw, dr, db, None, *starts, dp

    def _stacked(self, parts: Sequence[Gradient]) -> Gradient:
        wide = [self._op.Unsqueeze(part, [0]) for part in parts if part is not None]
        if not wide:
            return None
        return self._op.Concat(*wide, axis=0) if len(wide) > 1 else wide[0]


def _reordered(op: GradientOps, x: Gradient, order: list[int]) -> Gradient:
    return None if x is None else op.Transpose(x, perm=order)


class Direction:
    """One direction of a layer: x (time, batch, size), y and dy (time, batch, hidden)."""

    def __init__(
        self,
        op: GradientOps,
        node: ir.Node,
        index: int,
        reverse: bool,
        *,
        values: dict[str, Any],
        states: Sequence[Gradient],
        dstates: Sequence[Gradient],
    ) -> None:
        self.op, self.node, self.index, self.reverse = op, node, index, reverse
        self.x, self.w, self.r, self.b = (values[name] for name in "xwrb")
        p = values["p"]  # of i, o and f
        self.peepholes = None if p is None else op.Split(p, num_outputs=3, axis=0, outputs=3)
        lengths = input_of(node, 4)
        self._alive = None if lengths is None else self._until(lengths)
        self.rest = None if self._alive is None else op.Sub(1.0, self._alive)
        self.dy = None if values["dy"] is None else self.live(values["dy"])
        self.states = [self._zeros() if state is None else state for state in states]
        self.dstates = [self._ended(d, lengths) for d in dstates]
        y = values["y"]
        if self.rest is not None and states[0] is not None and reverse:
            y = op.Add(y, op.Mul(self.rest, states[0]))  # all but the last step
        self.before = joined(op, self.states[0], y, reverse)

    # -- time ------------------------------------------------------------------------------

    def _until(self, lengths: ir.Value) -> ir.Value:
        """1 before a sequence's end, else 0: (time, batch, 1)"""
        op = self.op
        t = op.Unsqueeze(op.arange(op.size(self.x, 0)), [1])
        alive = op.Less(t, op.Cast(lengths, to=ir.DataType.INT64))
        return op.Unsqueeze(op.cast_like(alive, self.x), [-1])

    def _zeros(self) -> ir.Value:
        op = self.op
        shape = op.shape(op.size(self.x, 1), op.size(self.r, -1))
        return op.Expand(op.number_like(0.0, self.x), shape)

    def _ended(self, d: Gradient, lengths: Gradient) -> ir.Value:
        """The gradient of a last state; a sequence without steps ends in zeros."""
        if d is None:
            return self._zeros()
        if lengths is None:
            return d
        some = self.op.cast_like(self.op.Greater(lengths, 0), d)
        return self.op.Mul(d, self.op.Unsqueeze(some, [-1]))

    def live(self, x: ir.Value) -> ir.Value:
        """x, zero where the sequence has ended."""
        return x if self._alive is None else self.op.Mul(x, self._alive)

    def live_or_one(self, x: ir.Value) -> ir.Value:
        """x, one where the sequence has ended."""
        return x if self.rest is None else self.op.Add(self.live(x), self.rest)

    # -- gates -----------------------------------------------------------------------------

    def bias(self) -> Gradient:
        """The sum of the two biases."""
        if self.b is None:
            return None
        ours, theirs = self.op.Split(self.b, num_outputs=2, axis=0, outputs=2)
        return self.op.Add(ours, theirs)

    def gates(self) -> ir.Value:
        """x W' + h R' + b of every step: (time, batch, gates)"""
        return self.affine(self.w, self.r, self.bias(), self.before)

    def two_gates(self) -> tuple[ir.Value, ir.Value]:
        """x W' + bw, and h R' + br"""
        ours, theirs = None, None
        if self.b is not None:
            ours, theirs = self.op.Split(self.b, num_outputs=2, axis=0, outputs=2)
        x = self.op.Gemm(self._rows(self.x), self.w, ours, transB=1)
        h = self.op.Gemm(self._rows(self.before), self.r, theirs, transB=1)
        return self._steps(x), self._steps(h)

    def affine(self, w: ir.Value, r: ir.Value, bias: Gradient, h: ir.Value) -> ir.Value:
        """x w' + h r' + bias"""
        a = self.op.Gemm(self._rows(self.x), w, bias, transB=1)
        return self._steps(self.op.Gemm(self._rows(h), r, a, transB=1))

    def split(self, x: ir.Value, axis: int) -> tuple[ir.Value, ir.Value]:
        """A GRU's first two gates, and its third."""
        hidden = self.op.size(self.r, -1)
        sizes = self.op.shape(self.op.product(hidden, 2), hidden)
        return self.op.Split(x, sizes, axis=axis, outputs=2)

    def _rows(self, x: ir.Value) -> ir.Value:
        return self.op.Flatten(x, axis=2)

    def _steps(self, rows: ir.Value) -> ir.Value:
        time, batch, _ = self.op.sizes(self.x)
        shape = self.op.shape(time, batch, self.op.size(rows, 1))
        return self.op.Reshape(rows, shape, allowzero=1)

    # -- back ------------------------------------------------------------------------------

    def weight(self, da: ir.Value, x: ir.Value) -> ir.Value:
        """da' x over all steps"""
        return self.op.Gemm(self._rows(da), self._rows(x), transA=1)

    def gradients(
        self, dax: ir.Value, dah: ir.Value, dr: Gradient = None, dp: Gradient = None
    ) -> dict[str, Gradient]:
        """dx = da W, dW = da' x, dR = da' h, db = (sum of da) twice"""
        op, db = self.op, None
        if self.b is not None:
            sums = [op.ReduceSum(self._rows(da), [0], keepdims=0) for da in (dax, dah)]
            db = op.Concat(*sums, axis=0)
        dr = self.weight(dah, self.before) if dr is None else dr
        dx = self._steps(op.Gemm(self._rows(dax), self.w))
        return {"x": dx, "w": self.weight(dax, self.x), "r": dr, "b": db, "p": dp}


def joined(op: GradientOps, start: ir.Value, after: ir.Value, reverse: bool) -> ir.Value:
    """The state at the start of each step: the first state, then those after the previous steps."""
    first = op.Unsqueeze(start, [0])
    if reverse:
        return op.Slice(op.Concat(after, first, axis=0), [1], [np.iinfo(np.int64).max], [0])
    return op.Slice(op.Concat(first, after, axis=0), [0], [-1], [0])


def scan(
    op: GradientOps,
    states: Sequence[ir.Value],
    scanned: Sequence[Gradient],
    step: Callable[..., Sequence[ir.Value]],
    *,
    from_end: bool,
) -> list[ir.Value]:
    """A Scan whose body is `step(op, *states, *elements) -> (*states, *results)`.

    Scanned values that are None are passed as None. Results are stacked in the same direction.
    """
    body = ir.Graph((), (), nodes=(), name="step")
    inner = op.inside(body)
    held = [_input(op, state, 0) for state in states]
    each = [None if x is None else _input(op, x, 1) for x in scanned]
    elements = [x for x in scanned if x is not None]
    body.inputs.extend([*held, *(x for x in each if x is not None)])
    made = list(step(inner, *held, *each))
    body.outputs.extend(made)
    time = next(x.shape[0] for x in elements if x.shape is not None)
    stacked = [ir.val("", type=y.type, shape=_longer(time, y)) for y in made[len(states) :]]
    attributes = {
        "body": body,
        "num_scan_inputs": len(elements),
        "scan_input_directions": [int(from_end)] * len(elements),
        "scan_output_directions": [int(from_end)] * len(stacked),
    }
    return op.typed("Scan", [*states, *elements], attributes, [*states, *stacked])


def _longer(time: Any, y: ir.Value) -> ir.Shape | None:
    return None if y.shape is None else ir.Shape([time, *y.shape])


def _input(op: GradientOps, like: ir.Value, without: int) -> ir.Value:
    """An input of a subgraph, like a value without its first axes."""
    shape = None if like.shape is None else ir.Shape(list(like.shape)[without:])
    return ir.val(op.name("each"), type=like.type, shape=shape)
