"""StepFunctions: the functions of a training step over the tensors of a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from onward.programs.program import DRAW, LOSS, Layout
from onward.programs.vector_offsets import Places
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.function_writer import (
    Compiler,
    FunctionWriter,
    list_expression,
    tuple_expression,
)
from onward.providers.torch.training.joined_vectors import join_expression
from onward.providers.torch.training.lowering import TorchGraph
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.sparse_rows import RowUpdate, SparseTrain
from onward.providers.torch.training.step_scalars import StepScalars
from onward.providers.torch.training.store import TorchStore, UpdateTensors
from onward.providers.torch.training.update_lines import UpdateLines


class StepFunctions:
    """Writes the functions of a program over the tensors of a store.

    `keeps_memory`: gradients stay in the same memory, as CUDA graphs require.
    """

    def __init__(
        self,
        layout: Layout,
        store: TorchStore | TorchPartStore,
        scalars: StepScalars,
        compiler: Compiler | None,
        keeps_memory: bool,
    ) -> None:
        self._layout, self._settings, self.store = layout, layout.settings, store
        self._scalars, self._compiler, self._keeps_memory = scalars, compiler, keeps_memory
        self._updates = UpdateLines(layout.settings, store, scalars)
        self.device = store.device

    # -- evaluation and prediction -------------------------------------------------------------

    def run(self, graph: TorchGraph, given: Sequence[str], wanted: Sequence[str]) -> Any:
        """given inputs -> the wanted outputs"""
        function = FunctionWriter("run_graph", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        function.line(f"return {tuple_expression(results[name] for name in wanted)}")
        return function.build()

    # -- the whole step ------------------------------------------------------------------------

    def step(
        self, train: SparseTrain, given: Sequence[str], updates: Sequence[TorchGraph]
    ) -> Callable[..., Any]:
        """given inputs -> (loss, outputs), whether gradients were finite; updates everything

        Gradients leave memory with the update; their sum of squares stays for `gradient_norm`.
        """
        function = FunctionWriter("train_step", self._compiler)
        graph, tables = train.graph, train.tables
        results = function.call(graph, self._arguments(function, graph, given, tables))
        shown = self._shown(function, graph, results)
        rows = {
            i: RowUpdate(function, tensors, self._table(name), tables[name], i)
            for i, tensors in enumerate(self.store.updates)
            if (name := tensors.update.parameters[0]) in tables
        }
        gradients = self._join_gradients(function, results, rows)
        finite, squares = self._is_finite(results[LOSS], gradients), "squares.view(())"
        function.line(f"finite = {finite}")
        function.line(f"squares = sum_of_squares({list_expression(gradients)}).view(1)")
        function.line(f"{function.bind(self._scalars.squares)}.copy_({squares})")
        self._write_state(function, {n: results[new] for n, new in self._layout.state.items()})
        self._updates.write(function, updates, gradients, squares, rows)
        function.line(f"{function.bind(self._scalars.inputs[DRAW])}[1:2].add_(1)")
        function.line(f"return {tuple_expression(shown)}, finite")
        return function.build()

    # -- gradients -----------------------------------------------------------------------------

    def compute_gradients(self, graph: TorchGraph, given: Sequence[str], first: bool) -> Any:
        """given inputs, gradients so far unless first -> (loss, outputs), gradients"""
        function = FunctionWriter("compute_gradients", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        shown = self._shown(function, graph, results)
        fresh = {name: results[output] for name, output in self._layout.state.items()}
        gathered = self._accumulate(function, results, results[LOSS], fresh, first)
        function.line(f"return {tuple_expression(shown)}, {gathered}")
        return function.build()

    def _shown(
        self, function: FunctionWriter, graph: TorchGraph, results: Mapping[str, str]
    ) -> list[str]:
        """The loss and the outputs; copies, where later lines write to their memory."""
        names = self._layout.results_of("train")
        for name in names:
            if name in graph.views:
                function.line(f"{results[name]} = {results[name]}.clone()")
        return [results[name] for name in names]

    def backward(self, graph: TorchGraph, given: Sequence[str], first: bool) -> Any:
        """given inputs, loss, new statistics, gradients so far unless first -> gradients"""
        function = FunctionWriter("run_backward", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        loss = function.add_argument()
        fresh = {name: function.add_argument() for name in self._layout.state}
        gathered = self._accumulate(function, results, loss, fresh, first)
        function.line(f"return {gathered}")
        return function.build()

    def segment(
        self,
        graph: TorchGraph,
        given: Sequence[str],
        wanted: Sequence[str],
        update: int | None,
        *,
        first: bool,
    ) -> Any:
        """given inputs, the update's gradients so far unless first -> wanted values, gradients"""
        function = FunctionWriter("run_segment", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        gathered = "None"
        if update is not None:
            tensors = self.store.updates[update]
            names = self._layout.gradients
            gradients = {name: results[names[name]] for name in tensors.update.parameters}
            joined = self._join(tensors.places, gradients, tensors.parameters.dtype)
            function.line(f"new = {joined}")
            gathered = self._add_gradients(function, tensors, "new", first)
        function.line(f"return {tuple_expression(results[name] for name in wanted)}, {gathered}")
        return function.build()

    def _accumulate(
        self,
        function: FunctionWriter,
        results: Mapping[str, str],
        loss: str,
        fresh: Mapping[str, str],
        first: bool,
    ) -> str:
        """Add gradients to their vectors, check that they are finite, and write the statistics."""
        new = self._join_gradients(function, results)
        vectors = [
            self._add_gradients(function, tensors, gradients, first)
            for tensors, gradients in zip(self.store.updates, new)
        ]
        flag = function.bind(self._scalars.flag)
        function.line(f"finite = {self._is_finite(loss, new)}")
        function.line(f"{flag}.copy_({'finite' if first else f'{flag} & finite'})")
        if self._settings.clip_norm is not None:
            squares = f"sum_of_squares({list_expression(vectors)})"
            function.line(f"{function.bind(self._scalars.squares)}.copy_({squares})")
        self._write_state(function, fresh)
        return tuple_expression(vectors)

    def _join_gradients(
        self,
        function: FunctionWriter,
        results: Mapping[str, str],
        rows: Mapping[int, RowUpdate] | None = None,
    ) -> list[str]:
        """Join the gradients of each update in one vector, or sum its rows; the tensors' names."""
        names, joined = self._layout.gradients, []
        for i, tensors in enumerate(self.store.updates):
            if rows and i in rows:
                joined.append(rows[i].sum(results))
                continue
            gradients = {name: results[names[name]] for name in tensors.update.parameters}
            vector = self._join(tensors.places, gradients, tensors.parameters.dtype)
            function.line(f"d{i} = {vector}")
            joined.append(f"d{i}")
        return joined

    def _join(self, places: Places, tensors: Mapping[str, str], dtype: torch.dtype) -> str:
        copies = self._compiler is not None and self.device.type == "cpu"
        return join_expression(places, tensors, dtype, copies=copies)

    def _is_finite(self, loss: str, gradients: list[str]) -> str:
        return f"torch.isfinite({loss}).all() & are_finite({list_expression(gradients)})"

    def _write_state(self, function: FunctionWriter, fresh: Mapping[str, str]) -> None:
        for each in self.store.state:
            joined = self._join(each.places, fresh, each.vector.dtype)
            self._updates.replace(function, function.bind(each.vector), joined)

    def _add_gradients(
        self, function: FunctionWriter, tensors: UpdateTensors, new: str, first: bool
    ) -> str:
        """Add new gradients to those so far; the name of the sum."""
        if self._keeps_memory:
            held = function.bind(tensors.gradient_vector())
            function.line(f"{held}.{'copy_' if first else 'add_'}({new})")
            return held
        if first:
            return new
        held = function.add_argument()
        function.line(f"{held}.add_({new})")
        return held

    # -- the update ----------------------------------------------------------------------------

    def update(self, graphs: Sequence[TorchGraph]) -> Any:
        """gradients -> whether they were finite; every parameter is updated, if they were"""
        function = FunctionWriter("update_parameters", self._compiler)
        flag = function.bind(self._scalars.flag)
        function.line(f"finite = {flag}.clone()")
        gradients = []
        for tensors in self.store.owned:
            given = function.add_argument()
            keeps = self._keeps_memory and tensors.parameters.numel()
            gradients.append(function.bind(tensors.gradient_vector()) if keeps else given)
        self._updates.write(function, graphs, gradients, function.bind(self._scalars.squares))
        function.line(f"{flag}.fill_(True)")
        function.line("return finite")
        return function.build()

    # -- inputs --------------------------------------------------------------------------------

    def _arguments(
        self,
        function: FunctionWriter,
        graph: TorchGraph,
        given: Sequence[str],
        tables: Collection[str] = (),
    ) -> dict[str, str]:
        """The inputs of a graph: given arguments, in this order, or tensors of the store.

        Tables of which only rows are updated are tensors of their own, not places in vectors.
        """
        arguments = {name: function.add_argument() for name in given}
        others = {**self.store.frozen, **self._scalars.inputs}
        arguments |= {n: function.bind(t) for n, t in others.items() if n in graph.inputs}
        vectors = [(tensors.parameters, tensors.places) for tensors in self.store.updates]
        vectors += [(each.vector, each.places) for each in self.store.state]
        for vector, places in vectors:
            for name in places.shapes:
                if name in graph.inputs and name not in tables:
                    arguments[name] = function.bind_view(vector, places, name)
        return arguments | {n: function.bind(self._table(n)) for n in tables if n in graph.inputs}

    def _table(self, name: str) -> Tensor:
        assert isinstance(self.store, TorchStore)  # processes that share tensors have no whole step
        return self.store.parameters[name]
