"""Find attention, as one node or written out, and whether its mask hides padded tokens.

    scores = MatMul(q, k^T); p = Softmax(scores + mask); y = MatMul(p, v)

Each row of y depends on one row of q, and on the rows of k and v that the mask does not hide: the
exponential of a score that is lowered far enough is 0, next to that of any visible key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onward.passes.composites import DOMAIN
from onward.passes.value_facts import Array, attribute, input_of, made_by, only_inside, scalar
from onward.programs.sparsity.row_axes import LEADING, Axes, RowAxes
from onward.programs.sparsity.trial_sizes import TrialSizes

_HIDDEN = -9e3  # added to a score: older exports have -10000, others the lowest number
_AFTER = ("Cast", "Identity", "Dropout")  # between the softmax and its product with v
_BEFORE = ("Cast", "Identity", "Mul", "Div", "Add", "Where")  # between q k^T and the softmax
_FOUR = Axes(0, 2)  # (batch, heads, time, size)


@dataclass
class Site:
    """One attention: q, k and v are read by `product` and `root`, which are one node in a call."""

    product: ir.Node
    root: ir.Node
    masks: list[Mask] = field(default_factory=list)
    hides: bool = False  # whether masks hide padded keys


@dataclass(frozen=True)
class Mask:
    """A value that decides which scores count: added to them, or true where they are kept."""

    value: ir.Value
    kept_where: bool | None = None  # of a boolean: which of its values keeps the score


class AttentionSites:
    """The attention of a graph, by the nodes that read q, k and v."""

    def __init__(self, graph: ir.Graph, trial: TrialSizes, mask: ir.Value) -> None:
        self._trial, self._mask = trial, mask
        self._contents = list(contents_to_try(trial))
        self._found: dict[Mask, bool] = {}
        self._sites: dict[ir.Node, Site] = {}
        for node in graph:
            site = _call_site(node) or _written_site(node)
            if site is not None:
                site.hides = any(map(self._hides, site.masks))
                self._sites[site.root] = self._sites[site.product] = site

    def of(self, node: ir.Node) -> Site | None:
        return self._sites.get(node)

    @property
    def are_masked(self) -> bool:
        """Whether any mask hides padded keys."""
        return any(site.hides for site in self._sites.values())

    def follow(self, node: ir.Node, rows: RowAxes) -> bool:
        """Give the output of attention the rows of its queries; False if it is no attention."""
        site = self.of(node)
        if site is None or site.root is not node:
            return False
        rank = len(rows.sizes(node.outputs[0]) or ())
        expected = LEADING if rank == 3 and site.product is node else Axes(0, rank - 2)
        if rows.of(site.product.inputs[0]) == expected:
            rows.set_output(node, 0, expected, (0,))
        else:
            rows.mark_if_leading(node.outputs[0])
        return True

    def hides_input(self, node: ir.Node, index: int, rows: RowAxes) -> bool:
        """Whether an input is the keys or values of attention whose mask hides padding."""
        site = self.of(node)
        if site is None or not site.hides:
            return False
        value = node.inputs[index]
        axes, rank = rows.of(value), len(rows.sizes(value) or ())
        if site.product is site.root:
            return index in (1, 2) and axes == (LEADING if rank == 3 else _FOUR)
        if node is site.root:
            return index == 1 and axes == Axes(0, rank - 2)
        return index == 1 and axes == Axes(0, rank - 1)

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
            array = self._trial.evaluate(mask.value, {str(self._mask.name): tokens})
            if array is None:
                parts = made_by(mask.value, "Add")
                if parts is None or mask.kept_where is not None:
                    return False  # a sum of a mask and numbers that are learnt hides as well
                return any(self._hides(Mask(v)) for v in parts.inputs if v is not None)
            if array.ndim < 2 or array.shape[-1] != tokens.shape[1]:
                return False
            if mask.kept_where is not None:
                hidden = array != mask.kept_where
            else:
                hidden = ~array if array.dtype == bool else array <= _HIDDEN
            padded = (tokens == 0)[:, None, None, :]
            try:
                if not (hidden | ~padded).all():
                    return False
            except ValueError:  # it does not broadcast against (batch, heads, queries, keys)
                return False
        return True


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


def _call_site(node: ir.Node) -> Site | None:
    """Attention as one node, of ONNX or of domain `onward`."""
    if node.op_type != "Attention" or node.domain not in ("", DOMAIN):
        return None
    mask = input_of(node, 3)
    if any(input_of(node, place) is not None for place in (4, 5)):
        return None  # keys of the past come before those of the mask's feed
    return Site(node, node, [] if mask is None else [Mask(mask)])


def _written_site(root: ir.Node) -> Site | None:
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
    if softmax is None or attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    site = Site(root, root)
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
        return Mask(other) if other is not None and is_number else None
    if node.op_type != "Where":
        return None
    condition, low = node.inputs[0], scalar(node.inputs[3 - index])
    if condition is None or low is None or low > _HIDDEN:
        return None
    return Mask(condition, kept_where=index == 1)
