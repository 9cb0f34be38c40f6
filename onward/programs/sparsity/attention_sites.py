"""Find attention, as one node or written out, and whether its mask hides padded tokens.

    scores = MatMul(q, k^T); p = Softmax(scores + mask); y = MatMul(p, v)

Each row of y depends on one row of q, and on the rows of k and v that the mask does not hide: the
exponential of a score that is lowered far enough is 0, next to that of any visible key.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onward.passes.composites import DOMAIN
from onward.passes.value_facts import Array, attribute, input_of, made_by, only_inside, rank, scalar
from onward.programs.sparsity.row_axes import LEADING, BatchSequenceAxes, RowAxes
from onward.programs.sparsity.trial_sizes import TrialSizes

_HIDDEN = -9e3  # added to a score: older exports have -10000, others the lowest number
_AFTER = ("Cast", "Identity", "Dropout")  # between the softmax and its product with v
_BEFORE = ("Cast", "Identity", "Mul", "Div", "Add", "Where")  # between q k^T and the softmax
_FOUR_AXES = 4  # of the scores of a call
_FOUR = BatchSequenceAxes(0, 2)  # (batch, heads, time, size)


@dataclass
class AttentionSite:
    """One attention: q, k and v are read by `product` and `root`, which are one node in a call."""

    product: ir.Node
    root: ir.Node
    masks: list[Mask] = field(default_factory=list)
    hides: bool = False  # whether masks hide padded keys from queries that are tokens ...
    hides_from_all: bool = False  # ... and from those that are padding


@dataclass(frozen=True)
class Mask:
    """A value that decides which scores count: added to them, or true where they are kept."""

    value: ir.Value
    rank: int  # of the scores
    kept_where: bool | None = None  # of a boolean: which of its values keeps the score


class AttentionSites:
    """The attention of a graph, by the nodes that read q, k and v."""

    def __init__(self, graph: ir.Graph, trial: TrialSizes, mask: ir.Value) -> None:
        self._trial, self._mask = trial, mask
        self._contents = list(contents_to_try(trial))
        self._found: dict[Mask, bool] = {}
        self._sites: dict[ir.Node, AttentionSite] = {}
        for node in graph:
            site = _call_site(node) or _written_site(node)
            if site is not None:
                self._examine(site)
                self._sites[site.root] = self._sites[site.product] = site

    def _examine(self, site: AttentionSite) -> None:
        """Find out whether masks hide padding; a query that sees no key would read all of them."""
        if any(map(self._hides, site.masks)):
            site.hides = all(self._shows_tokens(mask, itself=True) for mask in site.masks)
            site.hides_from_all = not attribute(site.root, "is_causal", 0) and all(
                self._shows_tokens(mask, itself=False) for mask in site.masks
            )

    def of(self, node: ir.Node) -> AttentionSite | None:
        return self._sites.get(node)

    @property
    def are_masked(self) -> bool:
        """Whether any mask hides padded keys."""
        return any(site.hides for site in self._sites.values())

    def follow(self, node: ir.Node, rows: RowAxes) -> bool:
        """Give the output of attention the rows of its queries; False if it is not attention."""
        site = self.of(node)
        if site is None or site.root is not node:
            return False
        rank = len(rows.sizes(node.outputs[0]) or ())
        expected = LEADING if rank == 3 and site.product is node else BatchSequenceAxes(0, rank - 2)
        if rows.of(site.product.inputs[0]) == expected:
            rows.set_output(node, 0, expected, (0,))
        else:
            rows.mark_if_leading(node.outputs[0])
        return True

    def hides_input(
        self, node: ir.Node, index: int, rows: RowAxes, unread: Container[ir.Value]
    ) -> bool:
        """Whether an input is the keys or values of attention whose mask hides padding.

        Padding that is a query may see nothing but padding: it does not matter where the result is
        `unread` there.
        """
        site = self.of(node)
        if site is None or not site.hides:
            return False
        if not site.hides_from_all and site.root.outputs[0] not in unread:
            return False
        value = node.inputs[index]
        axes, rank = rows.of(value), len(rows.sizes(value) or ())
        if site.product is site.root:
            return index in (1, 2) and axes == (LEADING if rank == 3 else _FOUR)
        if node is site.root:
            return index == 1 and axes == BatchSequenceAxes(0, rank - 2)
        return index == 1 and axes == BatchSequenceAxes(0, rank - 1)

    def reads_queries(self, node: ir.Node, index: int) -> ir.Value | None:
        """The output of the attention whose queries this input is; None: it is another input."""
        site = self.of(node)
        if site is None or site.product is not node or index != 0:
            return None
        return site.root.outputs[0]

    def _hides(self, mask: Mask) -> bool:
        if mask not in self._found:
            self._found[mask] = self._evaluate(mask)
        return self._found[mask]

    def _evaluate(self, mask: Mask) -> bool:
        """Whether every key where the feed is 0 is hidden, in all trials."""
        for tokens in self._contents:
            for others in (1, 0):
                hidden = self._hidden(mask, tokens, others)
                if hidden is None:
                    parts = made_by(mask.value, "Add")
                    if parts is None or mask.kept_where is not None:
                        return False  # a sum of a mask and numbers that are learnt hides as well
                    return any(self._hides(Mask(v, mask.rank)) for v in parts.inputs if v)
                padded = (tokens == 0).reshape(len(tokens), *[1] * (mask.rank - 2), -1)
                if not _fits(hidden, padded) or not (hidden | ~padded).all():
                    return False
        return True

    def _shows_tokens(self, mask: Mask, *, itself: bool) -> bool:
        """Whether each token sees itself, or each query all tokens."""
        for tokens in self._contents:
            hidden = self._hidden(mask, tokens, 1)
            if hidden is None:
                return True  # numbers that are learnt hide nothing
            is_token = (tokens == 1).reshape(len(tokens), *[1] * (mask.rank - 2), -1)
            if not _fits(hidden, is_token):
                return False
            rows = hidden.shape[-2]
            if itself and rows > 1:
                if rows != hidden.shape[-1]:
                    return False
                hidden = hidden & np.eye(rows, dtype=bool)
            if bool((hidden & is_token).any()):
                return False
        return True

    def _hidden(self, mask: Mask, tokens: Array, others: int) -> Array | None:
        """Where a mask hides scores: (..., queries, keys); None if it cannot be computed."""
        fed = {str(self._mask.name): tokens}
        array = self._trial.evaluate(mask.value, fed, others=others)
        if array is None:
            return None
        if array.ndim < 2:
            array = np.broadcast_to(array, (1, *array.shape) if array.ndim else (1, 1))
        if mask.kept_where is not None:
            return np.asarray(array != mask.kept_where)
        return np.asarray(~array if array.dtype == bool else array <= _HIDDEN)


def _fits(hidden: Array, tokens: Array) -> bool:
    """Whether a mask broadcasts against (batch, ..., keys), with a column for each key."""
    try:
        np.broadcast_shapes(hidden.shape, tokens.shape)
    except ValueError:
        return False
    return bool(hidden.shape[-1] in (1, tokens.shape[-1]))


def contents_to_try(trial: TrialSizes) -> Iterator[Array]:
    """Masks to try: padded at the end, at the beginning, and anywhere."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, trial.time + 1, (trial.batch, 1))
    right = (np.arange(trial.time) < lengths).astype(np.int64)
    yield right
    yield right[:, ::-1].copy()
    anywhere = rng.integers(0, 2, right.shape)
    anywhere[:, 0] = 1
    yield anywhere


def _call_site(node: ir.Node) -> AttentionSite | None:
    """Attention as one node, of ONNX or of domain `onward`."""
    if node.op_type != "Attention" or node.domain not in ("", DOMAIN):
        return None
    mask = input_of(node, 3)
    if any(input_of(node, place) is not None for place in (4, 5)):
        return None  # keys of the past come before those of the mask's feed
    return AttentionSite(node, node, [] if mask is None else [Mask(mask, _FOUR_AXES)])


def _written_site(root: ir.Node) -> AttentionSite | None:
    """Attention that is written out; its values in between are not used elsewhere."""
    if root.domain or root.op_type != "MatMul":
        return None
    nodes: list[ir.Node] = []
    value = root.inputs[0]
    softmax = None
    while value is not None and softmax is None:
        softmax = made_by(value, "Softmax")
        node = softmax or made_by(value, *_AFTER, "Where")
        if node is None:
            return None
        nodes.append(node)
        value = node.inputs[0]
        if node.op_type == "Where":
            value, guard = _without_nan(node)
            nodes += guard
    known = rank(root.inputs[0])
    if softmax is None or known is None or attribute(softmax, "axis", -1) not in (-1, known - 1):
        return None
    site = AttentionSite(root, root)
    product = _find_product(value, nodes, site.masks)
    if product is None or not only_inside(nodes, root):
        return None
    site.product = product
    return site


def _without_nan(node: ir.Node) -> tuple[ir.Value | None, list[ir.Node]]:
    """x of Where(IsNaN(x), 0, x)"""
    condition, zero, x = node.inputs
    guard = made_by(condition, "IsNaN")
    if guard is None or guard.inputs[0] is not x or scalar(zero) != 0:
        return None, []
    return x, [guard]


def _find_product(
    value: ir.Value | None, nodes: list[ir.Node], masks: list[Mask]
) -> ir.Node | None:
    """q k^T before a softmax; the masks on the way are added to the list."""
    product = made_by(value, "MatMul")
    if product is not None:
        nodes.append(product)
        return product
    node = made_by(value, *_BEFORE)
    if node is None:
        return None
    for index in (1, 2) if node.op_type == "Where" else (0, 1):
        found: list[ir.Node] = [node]
        inner: list[Mask] = []
        x = input_of(node, index)
        product = None if x is None else _find_product(x, found, inner)
        if product is None:
            continue
        nodes += found
        masks += inner if node.op_type in ("Cast", "Identity", "Add", "Where") else []
        mask = _mask_of(node, index)
        masks += [] if mask is None else [mask]
        return product
    return None


def _mask_of(node: ir.Node, index: int) -> Mask | None:
    """The mask that a node applies to its input of this index."""
    if node.op_type == "Add":
        other = node.inputs[1 - index]
        is_number = other is not None and other.dtype != ir.DataType.BOOL
        known = rank(node.outputs[0])
        return Mask(other, known) if other and is_number and known else None
    if node.op_type != "Where":
        return None
    condition, low = node.inputs[0], scalar(node.inputs[3 - index])
    if condition is None or low is None or low > _HIDDEN:
        return None
    known = rank(node.outputs[0])
    return None if known is None else Mask(condition, known, kept_where=index == 1)
