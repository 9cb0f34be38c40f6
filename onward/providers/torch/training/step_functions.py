"""Write the functions of a training step as Python source around lowered graphs.

The source holds constants (offsets of parameters in vectors, shapes), so that a compiled function
checks nothing at each call but its few tensor arguments:

    def compute_gradients(t0, t1, t2, a0, a1):
        loss, d0, d1 = forward(a0, a1, t0[0:6].view((2, 3)), t0[16:19].view((3,)))
        g0 = torch.cat([d0, pad(d1, 13)])
        ...

An uncompiled function is passed views that are made once.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import torch

from onward.optimizers.clip import NORM
from onward.programs.program import DRAW, LOSS, SCALE, Layout
from onward.programs.vector_offsets import Places
from onward.providers.provider import Draw
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.lowering import TorchGraph
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.store import TorchStore, UpdateTensors, view_in

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

UpdateTensorNames = list[
    tuple[str, str | None, str]
]  # input, the output that replaces it, its name

_serial = count()


class FunctionWriter:
    """Writes a function: its lines, and the tensors that are bound to it."""

    def __init__(self, name: str, compiler: Compiler | None) -> None:
        self._name, self._compiler = name, compiler
        self._bound: dict[int, tuple[str, Tensor, Tensor]] = {}  # id -> name, as given, tensor
        self._arguments_given: list[str] = []
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"torch": torch, **_HELPERS}

    def bind(self, tensor: Tensor) -> str:
        """Bind a tensor that stays in the same memory from call to call; its expression."""
        is_scalar = self._compiler is not None and not tensor.dim()
        given = tensor.view(1) if is_scalar else tensor  # Inductor reads float64 scalars by value
        name, *_ = self._bound.setdefault(id(tensor), (f"t{len(self._bound)}", given, tensor))
        return f"{name}.view(())" if is_scalar else name

    def bind_view(self, vector: Tensor, places: Places, name: str) -> str:
        """Bind a tensor that lies in a vector; for a compiler, as an expression over the vector."""
        if self._compiler is None:
            return self.bind(view_in(vector, places, name))
        return f"{self.bind(vector)}{_view_of(places, name)}"

    def add_argument(self) -> str:
        """Add an argument that each call passes; its name."""
        self._arguments_given.append(f"a{len(self._arguments_given)}")
        return self._arguments_given[-1]

    def call(self, graph: TorchGraph, arguments: Mapping[str, str]) -> dict[str, str]:
        """Write the call of a lowered graph; the names of its results."""
        function = f"graph_{len(self._names)}"
        self._names[function] = graph.module.forward
        results = {name: f"{function}_{i}" for i, name in enumerate(graph.outputs)}
        given = ", ".join(arguments[name] for name in graph.inputs)
        self.line(f"{', '.join(results.values())}, = {function}({given})")
        return results

    def line(self, text: str) -> None:
        self._lines.append(f"    {text}\n")

    def build(self) -> Callable[..., Any]:
        """The function of the arguments that were added; bound tensors are passed automatically."""
        tensors = [tensor for _, tensor, _ in self._bound.values()]
        names = [*(name for name, *_ in self._bound.values()), *self._arguments_given]
        source = f"def {self._name}({', '.join(names)}):\n{''.join(self._lines)}"
        file = f"<onward training function {next(_serial)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), self._names)
        plain = self._names[self._name]
        weakref.finalize(plain, linecache.cache.pop, file, None)
        if self._compiler is None:
            return lambda *given: plain(*tensors, *given)
        for tensor in tensors:
            torch._dynamo.mark_static(tensor)
            torch._dynamo.mark_static_address(tensor)
        compiled = self._compiler(plain)
        return lambda *given: compiled(*tensors, *given)


class StepScalars:
    """The scalars of a step (counts, rates, factors) as tensors on the device."""

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        lookahead: int,
        update_device: torch.device | None = None,  # where updates run; None: on the device
    ) -> None:
        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=update_device or device)

        # whether the gradients that await an update are finite
        self.flag = zeros(torch.bool).fill_(True)
        self.squares = zeros(torch.float64)  # the sum of their squares
        self.count = zeros(torch.int64)  # updates so far
        self.first = zeros(torch.int64)  # the count to which the first of the rates belongs
        self.rates = zeros(torch.float64, len(layout.updates), lookahead)
        self.factors = [  # of the gradients
            zeros(getattr(torch, update.dtype)).fill_(1.0) for update in layout.updates
        ]
        self.inputs = {  # of the train graph
            SCALE: zeros(torch.float32).fill_(1.0).to(device),
            DRAW: zeros(torch.int64, 3).to(device),
        }
        self._draw = self.inputs[DRAW].unbind()
        self._written: dict[int, float] = {}

    def write(self, tensor: Tensor, number: float) -> None:
        """Fill a tensor on the device, unless it holds the number already."""
        if self._written.get(id(tensor)) != number:
            tensor.fill_(number)
            self._written[id(tensor)] = number

    def write_draw(self, draw: Draw) -> None:
        """Write the seed, step and micro-batch that the train graph's random numbers depend on."""
        for i, number in enumerate(draw):
            self.write(self._draw[i], (number + (1 << 63)) % (1 << 64) - (1 << 63))


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
        self.device = store.device

    # -- evaluation and prediction -------------------------------------------------------------

    def run(self, graph: TorchGraph, given: Sequence[str], wanted: Sequence[str]) -> Any:
        """given inputs -> the wanted outputs"""
        function = FunctionWriter("run_graph", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        function.line(f"return {_tuple(results[name] for name in wanted)}")
        return function.build()

    # -- gradients -----------------------------------------------------------------------------

    def compute_gradients(self, graph: TorchGraph, given: Sequence[str], first: bool) -> Any:
        """given inputs, gradients so far unless first -> (loss, outputs), gradients"""
        function = FunctionWriter("compute_gradients", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        shown = [results[LOSS], *(self._output(graph, results, n) for n in self._layout.outputs)]
        fresh = {name: results[output] for name, output in self._layout.state.items()}
        gathered = self._accumulate(function, results, results[LOSS], fresh, first)
        function.line(f"return {_tuple(shown)}, {gathered}")
        return function.build()

    def _output(self, graph: TorchGraph, results: Mapping[str, str], name: str) -> str:
        """An output; a copy, where later lines write to its memory."""
        return f"{results[name]}.clone()" if name in graph.views else results[name]

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
            joined = _concatenated(tensors.places, gradients, tensors.parameters.dtype)
            function.line(f"new = {joined}")
            gathered = self._add_gradients(function, tensors, "new", first)
        function.line(f"return {_tuple(results[name] for name in wanted)}, {gathered}")
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
        gradients = {name: results[each] for name, each in self._layout.gradients.items()}
        new, vectors = [], []
        for i, tensors in enumerate(self.store.updates):
            joined = _concatenated(tensors.places, gradients, tensors.parameters.dtype)
            function.line(f"d{i} = {joined}")
            new.append(f"d{i}")
            vectors.append(self._add_gradients(function, tensors, f"d{i}", first))
        flag = function.bind(self._scalars.flag)
        function.line(f"finite = torch.isfinite({loss}).all() & are_finite({_list(new)})")
        function.line(f"{flag}.copy_({'finite' if first else f'{flag} & finite'})")
        if self._settings.clip_norm is not None:
            function.line(
                f"{function.bind(self._scalars.squares)}.copy_(sum_of_squares({_list(vectors)}))"
            )
        for each in self.store.state:
            joined = _concatenated(each.places, fresh, each.vector.dtype)
            self._write(function, function.bind(each.vector), joined)
        return _tuple(vectors)

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
        scalars = self._scalars
        known = (scalars.count, scalars.first, scalars.rates, scalars.flag)
        count, first, rates, flag = map(function.bind, known)
        function.line(f"finite = {flag}.clone()")
        function.line(f"step, ahead = {count} + 1, ({count} - {first}).view(1)")
        for i, tensors in enumerate(self.store.owned):
            gradients = function.add_argument()
            if not tensors.parameters.numel():  # a process may own none of its tensors
                continue
            if self._keeps_memory:
                gradients = function.bind(tensors.gradient_vector())
            dtype = f"torch.{tensors.update.dtype}"
            function.line(f"rate_{i} = {rates}[{i}].index_select(0, ahead).view(()).to({dtype})")
            arguments = {"learning_rate": f"rate_{i}", "step": "step"}
            arguments["gradient_scale"] = function.bind(scalars.factors[i])
            arguments[NORM] = function.bind(scalars.squares)
            self._update(function, graphs[i], tensors, gradients, arguments)
        done = "finite" if self._settings.skip_nonfinite else "1"
        function.line(f"{count}.add_({done})")
        function.line(f"{flag}.fill_(True)")
        function.line("return finite")
        return function.build()

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
        results = function.call(graph, arguments)
        for _, target, _ in places:
            if target is not None and target in graph.views:
                function.line(f"{results[target]} = {results[target]}.clone()")
        for _, target, name in places:
            if target is not None:
                self._write(function, name, results[target])

    def _write(self, function: FunctionWriter, held: str, new: str) -> None:
        """Write a tensor's new contents; with skip_nonfinite, only if all gradients are finite."""
        if self._settings.skip_nonfinite:
            new = f"torch.where(finite, {new}, {held})"
        function.line(f"{held}.copy_({new})")

    # -- inputs --------------------------------------------------------------------------------

    def _arguments(
        self, function: FunctionWriter, graph: TorchGraph, given: Sequence[str]
    ) -> dict[str, str]:
        """The inputs of a graph: given arguments, in this order, or tensors of the store."""
        arguments = {name: function.add_argument() for name in given}
        others = {**self.store.frozen, **self._scalars.inputs}
        arguments |= {n: function.bind(t) for n, t in others.items() if n in graph.inputs}
        vectors = [(tensors.parameters, tensors.places) for tensors in self.store.updates]
        vectors += [(each.vector, each.places) for each in self.store.state]
        for vector, places in vectors:
            for name in places.shapes:
                if name in graph.inputs:
                    arguments[name] = function.bind_view(vector, places, name)
        return arguments


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
        places.append((f"{name}.gradient", None, f"{gradients}{_view_of(tensors.places, name)}"))
    for slot, held in tensors.slots.items():
        for name, tensor in held.items():
            places.append((f"{name}.{slot}", f"{name}.{slot}.new", function.bind(tensor)))
    return places


def _view_of(places: Places, name: str) -> str:
    where, shape = places.slices[name], tuple(places.shapes[name])
    return f"[{where.start}:{where.stop}].view({shape})"


def _concatenated(places: Places, tensors: Mapping[str, str], dtype: torch.dtype) -> str:
    """Tensors concatenated in a vector, with zeros in the gaps."""
    parts = []
    starts = [where.start for where in places.slices.values()]
    for (name, where), end in zip(places.slices.items(), [*starts[1:], places.size]):
        flat = f"{tensors[name]}.reshape(-1)"
        gap = end - where.stop
        parts.append(f"pad({flat}, (0, {gap}))" if gap else flat)
    return f"torch.cat({_list(parts)}).to({dtype})"


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _tuple(names: Iterable[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


# -- functions that the source calls -----------------------------------------------------------


def are_finite(vectors: list[Tensor]) -> Tensor:
    """Whether every number is finite: by the largest, since a sum of finite ones can overflow.

    >>> are_finite([torch.tensor([3e38, 3e38])]), are_finite([torch.tensor([0.0, torch.nan])])
    (tensor(True), tensor(False))
    """
    largest = [torch.linalg.vector_norm(vector, torch.inf) for vector in vectors]
    return torch.stack([torch.isfinite(number) for number in largest]).all()


def sum_of_squares(vectors: list[Tensor]) -> Tensor:
    """The sum of squares, in float64.

    >>> sum_of_squares([torch.tensor([1.0, 2.0]), torch.tensor([3.0])])
    tensor(14., dtype=torch.float64)
    """
    norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in vectors]
    return torch.stack(norms).square().sum()


_HELPERS = {
    "are_finite": are_finite,
    "sum_of_squares": sum_of_squares,
    "pad": torch.nn.functional.pad,
}
