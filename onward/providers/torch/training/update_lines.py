"""UpdateLines: the lines of a written function that update parameters and slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.optimizers.clip import NORM
from onward.programs.program import Settings
from onward.providers.torch.training.blocked_updates import BlockedUpdate, has_blocks
from onward.providers.torch.training.function_writer import FunctionWriter, view_expression
from onward.providers.torch.training.lowering import TorchGraph
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.sparse_rows import RowUpdate
from onward.providers.torch.training.step_scalars import StepScalars
from onward.providers.torch.training.store import TorchStore, UpdateTensors

UpdateTensorNames = list[
    tuple[str, str | None, str]
]  # input, the output that replaces it, its name


class UpdateLines:
    """Writes the lines that update the tensors of a store.

    With skip_nonfinite, tensors change only if the variable `finite` of the function is true.
    """

    def __init__(
        self, settings: Settings, store: TorchStore | TorchPartStore, scalars: StepScalars
    ) -> None:
        self._store, self._scalars = store, scalars
        self._skips = settings.skip_nonfinite

    def write(
        self,
        function: FunctionWriter,
        graphs: Sequence[TorchGraph],
        gradients: Sequence[str],
        squares: str,
        rows: Mapping[int, RowUpdate] | None = None,
    ) -> None:
        """Update every parameter, or of tables some rows, and count the update, if `finite`."""
        scalars = self._scalars
        count, first, rates = map(function.bind, (scalars.count, scalars.first, scalars.rates))
        function.line(f"step, ahead = {count} + 1, ({count} - {first}).view(1)")
        kept = scalars.kept_scale
        factor = None if kept is None else kept.write_factor(function)
        for i, tensors in enumerate(self._store.owned):
            if not tensors.parameters.numel():  # a process may own none of its tensors
                continue
            dtype = f"torch.{tensors.update.dtype}"
            function.line(f"rate_{i} = {rates}[{i}].index_select(0, ahead).view(()).to({dtype})")
            arguments = {"learning_rate": f"rate_{i}", "step": "step", NORM: squares}
            arguments["gradient_scale"] = (
                function.bind(scalars.factors[i]) if factor is None else f"{factor}.to({dtype})"
            )
            if rows and i in rows:
                results = function.call(graphs[i], arguments | rows[i].read())
                rows[i].write(results, "finite" if self._skips else None)
            else:
                self._update(function, graphs[i], tensors, gradients[i], arguments)
        function.line(f"{count}.add_({'finite' if self._skips else '1'})")
        if kept is not None:
            kept.write_next(function)

    def _update(
        self,
        function: FunctionWriter,
        graph: TorchGraph,
        tensors: UpdateTensors,
        gradients: str,
        arguments: dict[str, str],
    ) -> None:
        places = _update_tensors(function, tensors, gradients)
        arguments |= {source: name for source, _, name in places}
        is_cut = tensors.update.flat and not function.is_compiled
        if is_cut and has_blocks([tensors.parameters, *tensors.slots.values()]):
            self._update_blocks(function, graph, places, arguments)
            return
        results = function.call(graph, arguments)
        for _, target, _ in places:
            if target is not None and target in graph.views:
                function.line(f"{results[target]} = {results[target]}.clone()")
        for _, target, name in places:
            if target is not None:
                self.replace(function, name, results[target])

    def _update_blocks(
        self,
        function: FunctionWriter,
        graph: TorchGraph,
        places: UpdateTensorNames,
        arguments: Mapping[str, str],
    ) -> None:
        outputs = [(name, graph.outputs.index(new)) for name, new, _ in places if new is not None]
        vectors = [name for name, _, _ in places]
        update = BlockedUpdate(graph.module.forward, graph.inputs, vectors, outputs)
        given = ", ".join(arguments[name] for name in graph.inputs)
        finite = "finite" if self._skips else "True"
        function.line(f"{function.bind_function(update)}({finite}, {given})")

    def replace(self, function: FunctionWriter, held: str, new: str) -> None:
        """Write a tensor's new contents; with skip_nonfinite, only if all gradients are finite."""
        if self._skips:
            new = f"torch.where(finite, {new}, {held})"
        function.line(f"{held}.copy_({new})")


def _update_tensors(
    function: FunctionWriter, tensors: UpdateTensors, gradients: str
) -> UpdateTensorNames:
    """The inputs of an update graph, with the outputs that replace them."""
    update = tensors.update
    places: UpdateTensorNames
    if update.flat:
        vectors = {"parameters": tensors.parameters, **tensors.slots}
        places = [(name, f"new_{name}", function.bind(v)) for name, v in vectors.items()]
        return [("gradients", None, gradients), *places]
    places = []
    for name in update.parameters:
        view = function.bind_view(tensors.parameters, tensors.places, name)
        places.append((name, f"{name}.new", view))
        places.append(
            (f"{name}.gradient", None, f"{gradients}{view_expression(tensors.places, name)}")
        )
    for slot, held in tensors.slots.items():
        for name, tensor in held.items():
            places.append((f"{name}.{slot}", f"{name}.{slot}.new", function.bind(tensor)))
    return places
