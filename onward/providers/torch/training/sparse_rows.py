"""Update only the rows of an embedding table that a batch has read.

    indices, rows                              results of the train graph instead of a gradient
    first[i] = the first j with ids[j] = ids[i]
    sums = zeros, sums[first] += rows          the gradient of each row that was read
    table[ids] = update(table[ids], sums[first])    equal for equal ids

The update is elementwise, and leaves elements without a gradient as they are
(programs/row_gradients.py): the table becomes what the update of all its rows would make of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from onward.passes.drop_unused import drop_unused
from onward.programs.program import Layout
from onward.programs.row_gradients import row_gradient
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.function_writer import FunctionWriter
from onward.providers.torch.training.lowering import TorchGraph, TorchGraphs
from onward.providers.torch.training.store import UpdateTensors


class RowResults(NamedTuple):
    """The results of a train graph that take the place of a table's gradient."""

    indices: str
    rows: str


@dataclass(frozen=True)
class SparseTrain:
    """A train graph with rows instead of gradients of some tables, which are the keys."""

    graph: TorchGraph
    tables: dict[str, RowResults]


def with_sparse_rows(graphs: TorchGraphs) -> SparseTrain:
    """The train graph; of tables whose gradients are sums of rows, it returns the rows."""
    names = _sparse_tables(graphs.layout)
    if not names:
        return SparseTrain(graphs.train, {})
    model = graphs.train.model.clone()
    outputs = {str(value.name): value for value in model.graph.outputs}
    tables = {}
    for name in names:
        gradient = outputs[graphs.layout.gradients[name]]
        found = row_gradient(gradient)
        if found is None:
            continue
        model.graph.outputs.remove(gradient)
        # tables may share numbers of rows, or rows
        new = [value for value in found if not value.is_graph_output()]
        model.graph.outputs.extend(dict.fromkeys(new))
        tables[name] = RowResults(str(found.indices.name), str(found.rows.name))
    return SparseTrain(TorchGraph(drop_unused(model), graphs.provider), tables)


def _sparse_tables(layout: Layout) -> list[str]:
    sparse = (update for update in layout.updates if update.sparse)
    return [update.parameters[0] for update in sparse if len(update.parameters) == 1]


class RowUpdate:
    """Writes the lines that update the rows of one table."""

    def __init__(
        self,
        function: FunctionWriter,
        tensors: UpdateTensors,
        table: Tensor,
        gradient: RowResults,
        number: int,
    ) -> None:
        [name] = tensors.update.parameters
        slots = {slot: tensors.slot(slot, name) for slot in tensors.update.slots}
        self._function, self._number, self._rows = function, number, len(table)
        self._gradient = gradient
        self._dtype = f"torch.{tensors.update.dtype}"
        self._held = {n: function.bind(t) for n, t in {"parameters": table, **slots}.items()}

    def sum(self, results: Mapping[str, str]) -> str:
        """Write the sum of equal rows among the results of the train graph; its name."""
        i, called = self._number, self._function.bind_function(sum_rows)
        indices, rows = (results[name] for name in self._gradient)
        given = f"{indices}, {rows}.to({self._dtype}), {self._rows}"
        self._function.line(f"ids_{i}, first_{i}, sums_{i} = {called}({given})")
        return f"sums_{i}"

    def read(self) -> dict[str, str]:
        """Write the reading of rows; the arguments of the update graph."""
        i = self._number
        for source, held in self._held.items():
            self._function.line(f"{source}_{i} = {held}[ids_{i}]")
        arguments = {source: f"{source}_{i}.reshape(-1)" for source in self._held}
        return {**arguments, "gradients": f"sums_{i}[first_{i}].reshape(-1)"}

    def write(self, results: dict[str, str], only_if: str | None) -> None:
        """Write the rows back; where `only_if` is false, as they were."""
        i = self._number
        for source, held in self._held.items():
            new = f"{results[f'new_{source}']}.view_as({source}_{i})"
            if only_if is not None:
                new = f"torch.where({only_if}, {new}, {source}_{i})"
            self._function.line(f"{held}.index_copy_(0, ids_{i}, {new})")


def sum_rows(indices: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of rows, for each the place of the first equal one, and the sums at those places.

    Without rows, or with as many as the table has, these are all rows of the table in their order.

    >>> sum_rows(torch.tensor([[3], [0], [3]]), torch.tensor([[1.0], [2.0], [4.0]]), 9)
    (tensor([3, 0, 3]), tensor([0, 1, 0]), tensor([[5.],
            [2.],
            [0.]]))
    """
    ids = indices.reshape(-1)
    ids = torch.where(ids < 0, ids + count, ids)
    given = rows.reshape(len(ids), math.prod(rows.shape[indices.dim() - 1 :]))
    places = torch.arange(len(ids), device=ids.device)
    if not 0 < len(ids) < count:
        every = torch.arange(count, device=ids.device)
        return every, every, given.new_zeros((count, given.shape[1])).index_add(0, ids, given)
    owner = torch.full((count,), len(ids), device=ids.device)
    first = owner.scatter_reduce(0, ids, places, "amin")[ids]
    return ids, first, torch.zeros_like(given).index_add(0, first, given)
