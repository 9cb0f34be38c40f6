"""Pairs: a x + b y in one pass over memory, where x and y lie one behind the other.

onnxruntime has no kernel that adds two scaled vectors; Mul, Mul and Add go over memory three times.
But two numbers times a matrix of two rows is that sum, and one pass. So an update graph is written
anew: vectors that are added become the rows of an input `x|y`, and results that are rows are
outputs (`new_x`; for what the update keeps to itself, `new_scratch_0`), bound in the rows' memory.
A product reads the memory of a result of this very run only after a value that waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.graph.graph_ops import GraphOps, extend
from onward.graph.scopes import ancestors
from onward.optimizers.vector_blocks import SCRATCH, Blocks, beside
from onward.passes.prune import drop_unused

NEW = "new_"


class Paired(NamedTuple):
    """A flat update over pairs, and which of its vectors lie one behind the other."""

    model: ir.Model
    blocks: Blocks


def paired(model: ir.Model) -> Paired:
    """The same update with as few passes as pairs allow; the model itself if they allow none.

    Only in float32, for which it was tried that a product may write over what it reads.

    >>> from onward.optimizers.update_models import flat_update
    >>> from onward.optimizers.sgd import SGD
    >>> paired(flat_update(SGD(momentum=0.9))).blocks
    (('parameters', 'momentum_buffer', 'gradients'),)
    """
    work = _Pairing(model.clone())
    for node in list(work.graph):
        work.consider(node)
    if not work.below:
        return Paired(model, ())
    drop_unused(work.model)
    taken = {f"{NEW}{v.name}" for v in work.graph.inputs} & {v.name for v in work.graph.outputs}
    work.graph.inputs[:] = [
        v for v in work.graph.inputs if v.uses() or f"{NEW}{v.name}" in taken or _is_scalar(v)
    ]
    return Paired(work.model, work.blocks())


class _Term(NamedTuple):
    """A vector, and the scalar that it is multiplied by."""

    vector: ir.Value
    factor: ir.Value | None
    negative: bool = False


class _Pairing:
    """An update graph while its sums become products."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.graph = model, model.graph
        self._op: GraphOps = extend(model)
        self._op.prefix = "pairs"
        self._matrices: dict[str, ir.Value] = {}
        self.below: dict[str, str] = {}  # row -> the row behind it
        self._above: dict[str, str] = {}

    def consider(self, node: ir.Node) -> None:
        """Turn a sum of two vectors into a product, if that spares a pass and is safe."""
        if node.op_type not in ("Add", "Sub") or not _is_vector(node.outputs[0]):
            return
        terms = [_term(value) for value in node.inputs if value is not None]
        if not all(_is_vector(term.vector) for term in terms):
            return
        if all(term.factor is None for term in terms) or terms[0].vector is terms[1].vector:
            return
        if all(self._is_in_time(term.vector, node) for term in terms):
            first, second = terms
            if node.op_type == "Sub":
                second = second._replace(negative=True)
            for pair in ((first, second), (second, first)):
                if self._fit(*(self._row(term.vector) for term in pair)):
                    self._replace(node.outputs[0], pair)
                    break

    def _is_in_time(self, vector: ir.Value, node: ir.Node) -> bool:
        """Whether a vector that is fed still has its old value when the node runs."""
        new = next((v for v in self.graph.outputs if v.name == f"{NEW}{vector.name}"), None)
        if vector.producer() is not None or new is None or new is node.outputs[0]:
            return True
        return node.outputs[0] in ancestors(self.graph, [new])

    def _row(self, vector: ir.Value) -> str:
        """Where a vector lies: an input in its own row, a new value in the old one's."""
        name = str(vector.name)
        if vector.producer() is None:
            return name
        return name.removeprefix(NEW) if vector.is_graph_output() else f"({name})"

    def _fit(self, first: str, second: str) -> bool:
        """Whether the second row can lie behind the first."""
        if self.below.get(first) == second:
            return True
        if first in self.below or second in self._above:
            return False
        last = second
        while last in self.below:
            last = self.below[last]
        return last != first

    def _replace(self, total: ir.Value, terms: tuple[_Term, _Term]) -> None:
        """Make a sum by a product."""
        rows = [self._placed(term.vector) for term in terms]
        self.below[rows[0]], self._above[rows[1]] = rows[1], rows[0]
        product = self._op.MatMul(self._factors(terms), self._matrix(rows))
        product.name, total.name = total.name, f"{total.name}.sum"
        product.shape, product.type = total.shape, total.type
        ir.convenience.replace_all_uses_with(total, product, replace_graph_outputs=True)
        self.graph.sort()

    def _placed(self, vector: ir.Value) -> str:
        """A vector's row; what no output holds yet gets a row of its own to be kept in."""
        if vector.producer() is None or vector.is_graph_output():
            return self._row(vector)
        count = sum(str(v.name).startswith(SCRATCH.format("")) for v in self.graph.inputs)
        name = SCRATCH.format(count)
        self._op.input(name, "float32", ("n",))
        vector.name = f"{NEW}{name}"
        self.graph.outputs.append(vector)
        return name

    def _factors(self, terms: tuple[_Term, _Term]) -> ir.Value:
        """The two factors as a vector, which is there only when the terms are."""
        parts = [self._factor(term) for term in terms]
        made = [term.vector for term in terms if term.vector.producer() is not None]
        waits = [self._op.Slice(vector, [0], [0], [0]) for vector in made]
        if not waits and all(isinstance(part, float) for part in parts):
            return self._op.constant(np.array(parts, np.float32))
        columns = [_column(self._op, part) for part in parts]
        return self._op.Concat(*columns, *waits, axis=0)

    def _factor(self, term: _Term) -> float | ir.Value:
        sign = -1.0 if term.negative else 1.0
        if term.factor is None:
            return sign
        if term.factor.const_value is not None:
            return sign * float(term.factor.const_value.numpy())
        return self._op.Neg(term.factor) if term.negative else term.factor

    def _matrix(self, rows: list[str]) -> ir.Value:
        name = beside(*rows)
        if name not in self._matrices:
            self._matrices[name] = self._op.input(name, "float32", (2, "n"))
        return self._matrices[name]

    def blocks(self) -> Blocks:
        """Rows that lie one behind the other, from the first to the last."""
        found = []
        for row in self.below:
            if row not in self._above:
                block = [row]
                while block[-1] in self.below:
                    block.append(self.below[block[-1]])
                found.append(tuple(block))
        return tuple(found)


def _column(op: GraphOps, factor: float | ir.Value) -> ir.Value:
    if isinstance(factor, float):
        return op.constant(np.array([factor], np.float32))
    return op.Reshape(factor, [1])


def _term(value: ir.Value) -> _Term:
    """What is added: a vector times a scalar if a node makes it that and for this sum alone."""
    node = value.producer()
    if node is not None and node.op_type == "Mul" and len(value.uses()) == 1:
        a, b = node.inputs
        if a is not None and b is not None and not value.is_graph_output():
            if _is_vector(a) and _is_scalar(b):
                return _Term(a, b)
            if _is_scalar(a) and _is_vector(b):
                return _Term(b, a)
    return _Term(value, None)


def _is_vector(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 1 and value.dtype == ir.DataType.FLOAT


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 0
