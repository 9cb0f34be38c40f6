"""Leave out padded tokens and ignored labels of a train graph, before it is differentiated."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.passes.fuse import activation, norm
from onward.passes.random_draws import remove_idle_dropouts
from onward.passes.recognize_composites import recognise_composites
from onward.passes.rewrite import rewrite
from onward.passes.token_functions import DOMAIN, PACK
from onward.passes.value_facts import Array, attribute, dims, input_of
from onward.programs.derived_feeds import CountedLabels, PackedRows
from onward.programs.sparsity.attention_sites import AttentionSites, contents_to_try
from onward.programs.sparsity.pack_rows import RowPacker
from onward.programs.sparsity.packed_forms import can_pack
from onward.programs.sparsity.row_axes import RowAxes
from onward.programs.sparsity.sparsity_options import Sparsity
from onward.programs.sparsity.trial_sizes import TrialSizes
from onward.programs.sparsity.unread_rows import LOSSES, Conditions, UnreadRows

log = logging.getLogger("onward")

_PRODUCTS = ("MatMul", "Gemm")
_SHIFTS = (0, 1, -1)  # of labels: GPT-2's row t has label t + 1


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What a train graph leaves out, and notes for the user."""

    rows: tuple[PackedRows, ...] = ()
    notes: tuple[str, ...] = ()


def leave_out_rows(model: ir.Model, options: Sparsity, parameters: Collection[str]) -> LeftOut:
    """Pack the tokens of a train graph, in place, where loss and gradients stay the same.

    `parameters` name the initializers that training changes. Random nodes are still in the graph:
    they draw for fewer tokens afterwards.
    """
    if not options.padding and not options.labels:
        return LeftOut()
    remove_idle_dropouts(model)
    rewrite(model, activation.rule | norm.rule)
    recognise_composites(model, parameters)
    rows: list[PackedRows] = []
    notes: list[str] = []
    for wanted, leave_out in ((options.labels, _labels), (options.padding, _padding)):
        if wanted:
            found, note = leave_out(model, options, parameters, rows)
            rows += [] if found is None else [found]
            notes.append(note)
            log.info("%s", note)
    return LeftOut(rows=tuple(rows), notes=tuple(notes))


# -- padding ---------------------------------------------------------------------------------------


def _padding(
    model: ir.Model, options: Sparsity, parameters: Collection[str], before: Iterable[PackedRows]
) -> tuple[PackedRows | None, str]:
    """Leave out the tokens that the attention mask hides."""
    why = "no feed of shape (batch, time) hides keys of attention"
    for mask in _feeds_of_rows(model):
        trial = TrialSizes(model, mask, parameters)
        sites = AttentionSites(model.graph, trial, mask)
        if not sites.are_masked:
            continue
        rows = _find_rows(model, trial, sites)
        labels_of = _LabelReader(model, trial, list(before))
        tokens = contents_to_try(trial)
        unread = UnreadRows(model.graph, rows, labels_of, sites, mask, tokens)
        nodes = _choose_nodes(model, rows, unread)
        if not nodes:
            why = _why(unread, mask)
            continue
        conditions = _conditions(nodes, unread)
        packed = PackedRows(
            gather="onward.tokens.gather",
            restore="onward.tokens.restore",
            mask=str(mask.name),
            labels=tuple(sorted(conditions.labels, key=lambda each: each.feed)),
            positions=tuple(sorted(conditions.positions)),
            bucket=options.bucket,
        )
        note = f"padding of {mask.name!r} is left out of {_counted(nodes)}"
        if _has_other_products(model, rows, nodes, sites):
            note += f"; not of others: {_why(unread, mask)}"
        RowPacker(model, rows, mask, packed, nodes).pack()
        return packed, note
    return None, f"padding is not left out: {why}"


def _feeds_of_rows(model: ir.Model) -> list[ir.Value]:
    """Inputs of shape (batch, time), those that are called a mask first."""
    found = [v for v in model.graph.inputs if len(dims(v) or ()) == 2 and v.const_value is None]
    return sorted(found, key=lambda value: "mask" not in str(value.name).lower())


def _find_rows(model: ir.Model, trial: TrialSizes, sites: AttentionSites | None) -> RowAxes:
    rows = RowAxes(model.graph, trial)
    for node in model.graph:
        if sites is None or not sites.follow(node, rows):
            rows.visit(node)
    return rows


def _why(unread: UnreadRows, mask: ir.Value) -> str:
    """The reason why nothing can be left out: the node nearest to the loss that reads all rows."""
    readers = [node for value, node in unread.readers.items() if value.dtype in FLOATS]
    if not readers:
        return f"no matrix product works on the tokens of {mask.name!r}"
    node = readers[0]
    return f"{node.op_type} {node.name!r} reads the tokens that {mask.name!r} hides"


def _has_other_products(
    model: ir.Model, rows: RowAxes, nodes: Collection[ir.Node], sites: AttentionSites
) -> bool:
    """Whether a matrix product with a weight works on all tokens."""
    others = (n for n in model.graph if n.op_type in _PRODUCTS and n not in nodes)
    return any(rows.row_inputs(node) == (0,) and sites.of(node) is None for node in others)


# -- labels ----------------------------------------------------------------------------------------


def _labels(
    model: ir.Model, options: Sparsity, parameters: Collection[str], before: Iterable[PackedRows]
) -> tuple[PackedRows | None, str]:
    """Leave out the rows of scores whose label is ignored."""
    why = "no loss ignores labels of shape (batch, time)"
    for feed in reversed(_feeds_of_rows(model)):
        if not _is_read_by_loss(model, feed):
            continue
        trial = TrialSizes(model, feed, parameters)
        labels_of = _LabelReader(model, trial, [])
        losses = [n for n in model.graph if _is_packable_loss(n) and labels_of(n) is not None]
        own = {found for n in losses if (found := labels_of(n)) and found.feed == feed.name}
        if len(own) != 1:
            continue
        (labels,) = own
        losses = [n for n in losses if labels_of(n) == labels]
        rows = _find_rows(model, trial, None)
        unread = UnreadRows(model.graph, rows, dict.fromkeys(losses, labels).get)
        nodes = _choose_nodes(model, rows, unread)
        if not nodes:
            why = "the scores are an output of the step, or read elsewhere"
            continue
        packed = PackedRows(
            gather="onward.labels.gather",
            restore="onward.labels.restore",
            labels=(labels,),
            bucket=options.bucket,
        )
        nodes |= {n for n in losses if (scores := n.inputs[0]) and scores in unread}
        RowPacker(model, rows, feed, packed, nodes).pack()
        return packed, f"ignored labels of {feed.name!r} are left out of {_counted(nodes)}"
    return None, f"ignored labels are not left out: {why}"


def _is_read_by_loss(model: ir.Model, feed: ir.Value) -> bool:
    """Whether a value is an integer feed, and some loss ignores labels."""
    is_integer = feed.dtype in (ir.DataType.INT64, ir.DataType.INT32)
    losses = [node for node in model.graph if node.op_type in LOSSES and not node.domain]
    return is_integer and any("ignore_index" in node.attributes for node in losses)


def _is_packable_loss(node: ir.Node) -> bool:
    """Whether a loss is one number, for which it does not matter how many rows are ignored."""
    if node.op_type not in LOSSES or node.domain:
        return False
    is_one = attribute(node, "reduction", "mean") in ("mean", "sum", b"mean", b"sum")
    return is_one and not any(output.name for output in node.outputs[1:])


class _LabelReader:
    """Finds the labels that decide which rows a loss reads, or a PackTokens of those rows."""

    def __init__(self, model: ir.Model, trial: TrialSizes, packed: list[PackedRows]) -> None:
        self._graph, self._trial = model.graph, trial
        self._packed = {rows.gather: rows.labels[0] for rows in packed if rows.mask is None}
        self._found: dict[ir.Node, CountedLabels | None] = {}

    def __call__(self, node: ir.Node) -> CountedLabels | None:
        if node not in self._found:
            self._found[node] = self._read(node)
        return self._found[node]

    def _read(self, node: ir.Node) -> CountedLabels | None:
        if node.domain == DOMAIN and node.op_type == PACK:
            gather = node.inputs[1]
            return None if gather is None else self._packed.get(str(gather.name))
        ignored = attribute(node, "ignore_index")
        if node.op_type not in LOSSES or node.domain or ignored is None:
            return None
        labels = input_of(node, 1)
        for feed in self._graph.inputs if labels is not None else ():
            if self._trial.feeds[str(feed.name)] != (self._trial.batch, self._trial.time):
                continue
            if feed.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
                continue
            assert labels is not None
            shift = self._shift(labels, feed, int(ignored))
            if shift is not None:
                return CountedLabels(feed=str(feed.name), ignored=int(ignored), shift=shift)
        return None

    def _shift(self, labels: ir.Value, feed: ir.Value, ignored: int) -> int | None:
        """By how much labels are those of the feed, moved along the sequence."""
        shape = (self._trial.batch, self._trial.time)
        start = max(ignored, 0) + 1
        fed: Array = np.arange(start, start + shape[0] * shape[1]).reshape(shape)
        found = self._trial.evaluate(labels, {str(feed.name): fed})
        if found is None or found.size != fed.size:
            return None
        for shift in _SHIFTS:
            moved = np.full(shape, ignored)
            if shift == 0:
                moved = fed
            elif shift > 0:
                moved[:, :-shift] = fed[:, shift:]
            else:
                moved[:, -shift:] = fed[:, :shift]
            if np.array_equal(found.reshape(shape), moved):
                return shift
        return None


# -- which nodes -----------------------------------------------------------------------------------


def _choose_nodes(model: ir.Model, rows: RowAxes, unread: UnreadRows) -> set[ir.Node]:
    """The nodes that are packed: connected ones, with a matrix product among them."""
    able = [
        node
        for node in model.graph
        if can_pack(node, rows) and all(y in unread for y in node.outputs if y.name)
    ]
    group: dict[ir.Node, set[ir.Node]] = {node: {node} for node in able}
    for node in able:
        for index in rows.row_inputs(node):
            value = node.inputs[index]
            maker = None if value is None else value.producer()
            if maker in group and group[maker] is not group[node]:
                small, large = sorted((group[maker], group[node]), key=len)
                large |= small
                group.update(dict.fromkeys(small, large))
    return {node for node in able if any(member.op_type in _PRODUCTS for member in group[node])}


def _conditions(nodes: Iterable[ir.Node], unread: UnreadRows) -> Conditions:
    """What batches must fulfil: the conditions of all results."""
    total = Conditions()
    for node in nodes:
        for y in node.outputs:
            total.add(unread.conditions(y))
    return total


def _counted(nodes: Collection[ir.Node]) -> str:
    products = sum(node.op_type in _PRODUCTS for node in nodes)
    return f"{len(nodes)} nodes, {products} of them matrix products"
