"""Compute a x + b y in one pass over memory, where x and y are adjacent rows of one buffer.

onnxruntime has no kernel that adds two scaled vectors; Mul, Mul and Add are three passes over
memory. But a vector of two factors times a matrix of two rows is that sum, in one pass. So an
update graph is rewritten: vectors that are added become the rows of an input `x|y`, and results
that are rows are outputs (`new_x`; for intermediate results, `new_scratch_0`), bound to the rows'
memory. A matrix product that reads a result of the same run depends on it, so that it runs
after it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.graph.graph_ops import GraphOps, extend
from onward.graph.scopes import ancestors
from onward.optimizers.vector_pair_names import SCRATCH, Blocks, pair_name
from onward.passes.drop_unused import drop_unused

NEW = "new_"


class Paired(NamedTuple):
    """A flat update over pairs, and the blocks of its adjacent vectors."""

    model: ir.Model
    blocks: Blocks


def paired(model: ir.Model) -> Paired:
    """The same update with fewer passes over memory; the model itself if there are no pairs.

    Only in float32, for which a matrix product may overwrite its inputs (that was tested).

    >>> from onward.optimizers.update_models import flat_update
    >>> from onward.optimizers.sgd import SGD
    >>> paired(flat_update(SGD(momentum=0.9))).blocks
    (('parameters', 'momentum_buffer', 'gradients'),)
    """
    work = _Pairing(model.clone())
    for node in list(work.graph):
        work.replace_sum(node)
    if not work.below:
        return Paired(model, ())
    drop_unused(work.model)
    taken = {f"{NEW}{v.name}" for v in work.graph.inputs} & {v.name for v in work.graph.outputs}
    work.graph.inputs[:] = [
        v for v in work.graph.inputs if v.uses() or f"{NEW}{v.name}" in taken or _is_scalar(v)
    ]
    return Paired(work.model, work.blocks())


class _Term(NamedTuple):
    """A vector and its scalar factor."""

    vector: ir.Value
    factor: ir.Value | None
    negative: bool = False


class _Pairing:
    """Rewrites the sums of an update graph to matrix products."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.graph = model, model.graph
        self._op: GraphOps = extend(model)
        self._op.prefix = "pairs"
        self._matrices: dict[str, ir.Value] = {}
        self.below: dict[str, str] = {}  # row -> the next row
        self._above: dict[str, str] = {}

    def replace_sum(self, node: ir.Node) -> None:
        """Replace a sum of two vectors by a matrix product, if that saves a pass and is safe."""
        if node.op_type not in ("Add", "Sub") or not _is_vector(node.outputs[0]):
            return
        terms = [_term(value) for value in node.inputs if value is not None]
        if not all(_is_vector(term.vector) for term in terms):
            return
        if all(term.factor is None for term in terms) or terms[0].vector is terms[1].vector:
            return
        if all(self._is_unchanged(term.vector, node) for term in terms):
            first, second = terms
            if node.op_type == "Sub":
                second = second._replace(negative=True)
            for pair in ((first, second), (second, first)):
                if self._can_be_adjacent(*(self._row(term.vector) for term in pair)):
                    self._replace(node.outputs[0], pair)
                    break

    def _is_unchanged(self, vector: ir.Value, node: ir.Node) -> bool:
        """Whether an input vector still has its old value when the node runs."""
        new = next((v for v in self.graph.outputs if v.name == f"{NEW}{vector.name}"), None)
        if vector.producer() is not None or new is None or new is node.outputs[0]:
            return True
        return node.outputs[0] in ancestors(self.graph, [new])

    def _row(self, vector: ir.Value) -> str:
        """The row of a vector: an input's own row; a new value is in the row of the old one."""
        name = str(vector.name)
        if vector.producer() is None:
            return name
        return name.removeprefix(NEW) if vector.is_graph_output() else f"({name})"

    def _can_be_adjacent(self, first: str, second: str) -> bool:
        """Whether the second row can be next to the first."""
        if self.below.get(first) == second:
            return True
        if first in self.below or second in self._above:
            return False
        last = second
        while last in self.below:
            last = self.below[last]
        return last != first

    def _replace(self, total: ir.Value, terms: tuple[_Term, _Term]) -> None:
        """Replace a sum by a matrix product."""
        rows = [self._assign_row(term.vector) for term in terms]
        self.below[rows[0]], self._above[rows[1]] = rows[1], rows[0]
        product = self._op.MatMul(self._factors(terms), self._matrix(rows))
        product.name, total.name = total.name, f"{total.name}.sum"
        product.shape, product.type = total.shape, total.type
        ir.convenience.replace_all_uses_with(total, product, replace_graph_outputs=True)
        self.graph.sort()

    def _assign_row(self, vector: ir.Value) -> str:
        """A vector's row; an intermediate result gets a new scratch row."""
        if vector.producer() is None or vector.is_graph_output():
            return self._row(vector)
        count = sum(str(v.name).startswith(SCRATCH.format("")) for v in self.graph.inputs)
        name = SCRATCH.format(count)
        self._op.input(name, "float32", ("n",))
        vector.name = f"{NEW}{name}"
        self.graph.outputs.append(vector)
        return name

    def _factors(self, terms: tuple[_Term, _Term]) -> ir.Value:
        """The two factors as a vector, which depends on the terms: it is computed after them."""
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
        name = pair_name(*rows)
        if name not in self._matrices:
            self._matrices[name] = self._op.input(name, "float32", (2, "n"))
        return self._matrices[name]

    def blocks(self) -> Blocks:
        """The blocks of adjacent rows, from the first row to the last."""
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
    """A term of a sum: a vector times a scalar if it is a Mul that only this sum reads."""
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
