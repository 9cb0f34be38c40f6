"""Gradients of embedding tables that are sums of rows, and tables with an update of their own.

    table_grad = ScatterND(zeros, indices, rows, reduction="add")

An optimizer that leaves elements without a gradient as they are (SGD without momentum, Adagrad)
changes only those rows of the table. Such a table has an update of its own
(`UpdateLayout.sparse`), which an engine may compute for these rows only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import onnx_ir as ir

from onward.graph.scopes import origin, standard
from onward.optimizers.groups import Assignment
from onward.passes.value_facts import attribute
from onward.programs.program import Shape

SMALLEST_TABLE = 1 << 20  # elements; smaller tables are updated with other parameters

_is_expand = standard({"Expand"})


class RowGradient(NamedTuple):
    """What a gradient is the sum of: numbers of rows (..., 1), and a row for each."""

    indices: ir.Value
    rows: ir.Value


def row_gradient(gradient: ir.Value) -> RowGradient | None:
    """The rows that a gradient of a table is the sum of; None if it is something else."""
    node = gradient.producer()
    if node is None or not standard({"ScatterND"})(node) or len(gradient.uses()):
        return None
    zeros, indices, rows = node.inputs
    if attribute(node, "reduction", "none") != "add" or zeros is None:
        return None
    if indices is None or rows is None or indices.shape is None or indices.shape[-1] != 1:
        return None
    tensor = ir.convenience.get_const_tensor(origin(zeros, _is_expand))
    return None if tensor is None or tensor.numpy().any() else RowGradient(indices, rows)


def separate_tables(
    assignments: Sequence[Assignment],
    gradients: Mapping[str, ir.Value],
    shapes: Mapping[str, Shape],
) -> tuple[list[Assignment], frozenset[str]]:
    """Assignments in which each table with a gradient of rows has its own; and these tables."""
    found: list[Assignment] = []
    tables: set[str] = set()
    for each in assignments:
        allows = each.optimizer is not None and (
            each.optimizer.elementwise and each.optimizer.skips_zero_gradients
        )
        separate = [
            name for name in each.names if allows and _is_table(shapes[name], gradients[name])
        ]
        found.append(each._replace(names=[name for name in each.names if name not in separate]))
        found += [each._replace(names=[name]) for name in separate]
        tables |= {*separate}
    return [each for each in found if each.names], frozenset(tables)


def _is_table(shape: Shape, gradient: ir.Value) -> bool:
    return prod(shape) >= SMALLEST_TABLE and row_gradient(gradient) is not None
