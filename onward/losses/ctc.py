"""CTC: the loss of an unaligned sequence, as a Scan over time in log space.

A label sequence "ab" is extended to "-a-b-", where - is the blank: S labels, 2 S + 1 places.
alpha[t][s] is the log probability of all paths that reach place s at time t:

alpha[t][s] = log p[t][place s] + logsumexp(alpha[t-1][s], alpha[t-1][s-1], alpha[t-1][s-2] *)

* if the place is a label that differs from the one two places before. An impossible path has a very
low number instead of minus infinity, so that infinity minus infinity never occurs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps
from onward.losses.loss import (
    Values,
    check_loss,
    check_rank,
    integers,
    read,
    reduced,
    sizes_of,
    target,
)
from onward.settings import integer, nonempty_name, optional, true_or_false

_IMPOSSIBLE = -1e30  # in the place of log 0
_LIMIT = -1e29  # sums below it contain an impossible term
_SHIFT = (0, 0, 1, 0, 0, -1)  # pads that shift the last axis by one


@dataclass(frozen=True, kw_only=True)
class CTC:
    """-log of the probability of the labels, summed over all alignments.

    Attributes:
        output: log probabilities (time, batch, classes), as LogSoftmax gives them; None: the first
        target: the input with the labels (batch, S); the rest of a row may hold anything
        input_lengths: the input with how much time of each row counts; None: all of it
        target_lengths: the input with how many labels of each row count; None: all of them
        blank: the class that stands for no label
        zero_infinity: a row whose labels do not fit into its time counts 0 instead of inf
        reduction: "mean" (each loss over its number of labels, then over the batch), "sum", "none"
    """

    output: str | None = None
    target: str = "labels"
    input_lengths: str | None = "input_lengths"
    target_lengths: str | None = "target_lengths"
    blank: int = 0
    zero_infinity: bool = False
    reduction: str = "mean"

    @property
    def is_mean_of_rows(self) -> bool:
        """Whether each row counts the same, however many labels it has."""
        return self.reduction == "mean"

    def __post_init__(self) -> None:
        check_loss(
            self,
            input_lengths=optional(nonempty_name),
            target_lengths=optional(nonempty_name),
            blank=integer(),
            zero_infinity=true_or_false,
        )

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        log_probs = read(op, self, values, self.output)
        check_rank(self, log_probs, 3, "log probabilities of shape (time, batch, classes)", 3)
        _, batch, classes = sizes_of(log_probs)
        if self.blank < 0 or (isinstance(classes, int) and self.blank >= classes):
            raise OptionError(f"CTC.blank must be a class, 0 to {classes} - 1, not {self.blank}")
        longest = f"{self.target}_length"
        labels = target(op, self, values, self.target, "int64", [batch, longest])
        labels = integers(op, self, labels)
        lengths = self._lengths(op, values, self.target_lengths, batch)
        inputs = self._lengths(op, values, self.input_lengths, batch)
        if lengths is not None:  # padding may be any number
            within = op.Less(op.arange(op.size(labels, 1)), op.Unsqueeze(lengths, [1]))
            labels = op.Where(within, labels, self.blank)
        places = _extend_labels(op, labels, self.blank)  # (batch, places)
        alpha = _scan(op, log_probs, places, inputs, self.blank)
        if lengths is None:
            lengths = op.Expand(op.shape(op.size(labels, 1)), op.shape(op.size(labels, 0)))
        return self._read_out(op, alpha, lengths)

    def _lengths(
        self, op: GraphOps, values: Values, name: str | None, batch: int | str | None
    ) -> ir.Value | None:
        if name is None:
            return None
        return integers(op, self, target(op, self, values, name, "int64", [batch]))

    def _read_out(self, op: GraphOps, alpha: ir.Value, lengths: ir.Value) -> ir.Value:
        """The loss from the last alpha: a row ends at its last label or at the blank after it."""
        end = op.Unsqueeze(op.Mul(lengths, 2), [1])  # (batch, 1)
        behind = op.GatherElements(alpha, end, axis=1)
        label = op.GatherElements(alpha, op.Max(op.Sub(end, 1), 0), axis=1)
        label = op.Where(op.Equal(end, 0), _IMPOSSIBLE, label)  # of a row without labels
        paths = op.Concat(behind, label, axis=1)
        log_likelihood = op.ReduceLogSumExp(paths, [1], keepdims=0)
        possible = op.Greater(log_likelihood, _LIMIT)
        never = 0.0 if self.zero_infinity else np.inf
        each = op.Where(possible, op.Neg(log_likelihood), never)
        if self.reduction == "mean":
            count = op.cast_like(op.Max(lengths, 1), each)
            each = op.Div(each, count)
        return reduced(op, each, self.reduction)


def _extend_labels(op: GraphOps, labels: ir.Value, blank: int) -> ir.Value:
    """-a-b- for ab: (batch, S) -> (batch, 2 S + 1)"""
    batch, longest = op.sizes(labels)
    blanks = op.Expand(np.array(blank), op.shape(batch, longest, 1))
    pairs = op.Concat(blanks, op.Unsqueeze(labels, [2]), axis=2)
    joined = op.Reshape(pairs, op.shape(batch, op.product(longest, 2)), allowzero=1)
    return op.Concat(joined, op.Expand(np.array(blank), op.shape(batch, 1)), axis=1)


def _scan(
    op: GraphOps, log_probs: ir.Value, places: ir.Value, lengths: ir.Value | None, blank: int
) -> ir.Value:
    """alpha at the end of each row: (batch, places)"""
    time, batch, count = *op.sizes(log_probs)[:2], op.size(places, 1)
    zero = op.number_like(0.0, log_probs)
    known = [sizes_of(log_probs)[1], sizes_of(places)[1]]
    sizes = [op.name("size") if size is None else size for size in known]
    spread = op.Expand(places, op.shape(time, batch, count))
    emitted = op.Clip(op.GatherElements(log_probs, spread, axis=2), _IMPOSSIBLE)
    first = op.Where(op.Equal(op.arange(count), 0), zero, _IMPOSSIBLE)
    start = op.Expand(first, op.shape(1, batch, count))
    skip = op.Where(_may_skip(op, places, blank), zero, _IMPOSSIBLE)
    # unknown sizes get names, so that the gradient knows which of them are equal
    emitted.shape = ir.Shape([sizes_of(log_probs)[0], *sizes])
    start.shape, skip.shape = ir.Shape([1, *sizes]), ir.Shape(sizes)
    scanned = [emitted]
    if lengths is not None:
        clock = op.Unsqueeze(op.arange(time), [1, 2])
        scanned.append(op.Less(clock, op.Unsqueeze(lengths, [1])))
        scanned[1].shape = ir.Shape([sizes_of(log_probs)[0], sizes[0], 1])
    body = _step(op, start, skip, scanned)
    settings = {"body": body, "num_scan_inputs": len(scanned)}
    (alpha,) = op.typed("Scan", [start, *scanned], settings, [start])
    return op.Squeeze(alpha, [0])


def _may_skip(op: GraphOps, places: ir.Value, blank: int) -> ir.Value:
    """Where a path may skip a blank: to a label that differs from the previous label."""
    ahead = op.Expand(np.array(blank), op.shape(op.size(places, 0), 2))
    earlier = op.Slice(op.Concat(ahead, places, axis=1), [0], [-2], [1])
    return op.Not(op.Or(op.Equal(places, blank), op.Equal(places, earlier)))


def _step(op: GraphOps, start: ir.Value, skip: ir.Value, scanned: list[ir.Value]) -> ir.Graph:
    """The subgraph of one time step: alpha (1, batch, places), log probabilities, mask -> alpha"""
    body = ir.Graph((), (), nodes=(), name="ctc")
    inside = op.inside(body)
    alpha = ir.val(op.name("alpha"), type=start.type, shape=start.shape)
    body.inputs.append(alpha)
    for value in scanned:
        sizes = ir.Shape(sizes_of(value)[1:])
        body.inputs.append(ir.val(op.name("at"), type=value.type, shape=sizes))
    by_one = inside.Pad(alpha, _SHIFT, _IMPOSSIBLE)
    by_two = inside.Pad(by_one, _SHIFT, _IMPOSSIBLE)
    by_one.shape = by_two.shape = alpha.shape
    paths = inside.Concat(alpha, by_one, inside.Add(by_two, skip), axis=0)
    reached = inside.ReduceLogSumExp(paths, [0], keepdims=1)
    reached.shape = alpha.shape
    later = inside.Add(reached, body.inputs[1])
    if len(scanned) > 1:
        later = inside.Where(body.inputs[2], later, alpha)
    later.shape = alpha.shape
    body.outputs.append(later)
    return body
