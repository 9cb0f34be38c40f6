"""The functions of a training step, written as source around lowered graphs.

Source holds what never changes (places of parameters in vectors, shapes) as constants, so that a
compiled function has nothing to check at each call but the few tensors that it is given:

    def compute_gradients(t0, t1, t2, a0, a1):
        loss, d0, d1 = forward(a0, a1, t0[0:6].view((2, 3)), t0[16:19].view((3,)))
        g0 = join([d0, pad(d1, 13)])
        ...

Uncompiled, views are made once and given as they are.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import torch

from onward.optimizers.clip import NORM
from onward.passes.random_draws import DRAW
from onward.programs.program import LOSS, SCALE, Layout
from onward.programs.vector_offsets import Places
from onward.providers.provider import Draw
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.lowering import TrainingGraph
from onward.providers.torch.training.store import TorchStore, UpdateTensors, part

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

Taken = list[tuple[str, str | None, str]]  # input, the output that takes its place, its name

_serial = count()


class Function:
    """A function being written: its lines, and the tensors that it is bound to."""

    def __init__(self, name: str, compiler: Compiler | None) -> None:
        self._name, self._compiler = name, compiler
        self._bound: dict[int, tuple[str, Tensor, Tensor]] = {}  # id -> name, as given, tensor
        self._given: list[str] = []
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"torch": torch, **_HELPERS}

    def bind(self, tensor: Tensor) -> str:
        """A tensor that stays where it is from call to call, as an expression."""
        is_scalar = self._compiler is not None and not tensor.dim()
        given = tensor.view(1) if is_scalar else tensor  # Inductor reads float64 scalars by value
        name, *_ = self._bound.setdefault(id(tensor), (f"t{len(self._bound)}", given, tensor))
        return f"{name}.view(())" if is_scalar else name

    def bind_part(self, vector: Tensor, places: Places, name: str) -> str:
        """A tensor's part of a vector: to a compiler, an expression over the whole of it."""
        if self._compiler is None:
            return self.bind(part(vector, places, name))
        return f"{self.bind(vector)}{_part(places, name)}"

    def give(self) -> str:
        """The name of the next argument of a call."""
        self._given.append(f"a{len(self._given)}")
        return self._given[-1]

    def call(self, graph: TrainingGraph, arguments: Mapping[str, str]) -> dict[str, str]:
        """Call a lowered graph; the names of its results."""
        function = f"graph_{len(self._names)}"
        self._names[function] = graph.module.forward
        results = {name: f"{function}_{i}" for i, name in enumerate(graph.outputs)}
        given = ", ".join(arguments[name] for name in graph.inputs)
        self.line(f"{', '.join(results.values())}, = {function}({given})")
        return results

    def line(self, text: str) -> None:
        self._lines.append(f"    {text}\n")

    def build(self) -> Callable[..., Any]:
        """The function of what `give` named; what was bound is given by itself."""
        tensors = [tensor for _, tensor, _ in self._bound.values()]
        names = [*(name for name, *_ in self._bound.values()), *self._given]
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


class Scalars:
    """The small tensors of a step, on the device."""

    def __init__(self, layout: Layout, device: torch.device, lookahead: int) -> None:
        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.flag = zeros(torch.bool).fill_(
            True
        )  # whether gradients that await an update are finite
        self.squares = zeros(torch.float64)  # the sum of their squares
        self.count = zeros(torch.int64)  # updates that were made
        self.first = zeros(torch.int64)  # the count that the first of the rates is for
        self.rates = zeros(torch.float64, len(layout.updates), lookahead)
        self.factors = [  # what gradients are multiplied by
            zeros(getattr(torch, update.dtype)).fill_(1.0) for update in layout.updates
        ]
        self.inputs = {  # of the train graph
            SCALE: zeros(torch.float32).fill_(1.0),
            DRAW: zeros(torch.int64, 3),
        }
        self._draw = self.inputs[DRAW].unbind()
        self._written: dict[int, float] = {}

    def write(self, tensor: Tensor, number: float) -> None:
        """Fill a tensor, unless it holds the number: made on the device, not copied there."""
        if self._written.get(id(tensor)) != number:
            tensor.fill_(number)
            self._written[id(tensor)] = number

    def write_draw(self, draw: Draw) -> None:
        """Where random numbers are drawn, as the train graph takes it."""
        for i, number in enumerate(draw):
            self.write(self._draw[i], (number + (1 << 63)) % (1 << 64) - (1 << 63))


class StepFunctions:
    """Writes the functions of a program over the tensors of a store.

    `keeps_memory`: gradients stay in the same memory, which a CUDA graph wants.
    """

    def __init__(
        self,
        layout: Layout,
        store: TorchStore,
        scalars: Scalars,
        compiler: Compiler | None,
        keeps_memory: bool,
    ) -> None:
        self._layout, self._settings, self._store = layout, layout.settings, store
        self._scalars, self._compiler, self._keeps_memory = scalars, compiler, keeps_memory

    # -- graphs that are only run --------------------------------------------------------------

    def run(self, graph: TrainingGraph, given: Sequence[str], wanted: Sequence[str]) -> Any:
        """given inputs -> the outputs that are wanted"""
        function = Function("run_graph", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        function.line(f"return {_tuple(results[name] for name in wanted)}")
        return function.build()

    # -- gradients -----------------------------------------------------------------------------

    def compute_gradients(self, graph: TrainingGraph, given: Sequence[str], first: bool) -> Any:
        """given inputs, gradients so far unless first -> (loss, outputs), gradients"""
        function = Function("compute_gradients", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        shown = [results[LOSS], *(self._shown(graph, results, n) for n in self._layout.outputs)]
        fresh = {name: results[output] for name, output in self._layout.state.items()}
        gathered = self._gather(function, results, results[LOSS], fresh, first)
        function.line(f"return {_tuple(shown)}, {gathered}")
        return function.build()

    def _shown(self, graph: TrainingGraph, results: Mapping[str, str], name: str) -> str:
        """An output; where it is what the next lines write to, a copy."""
        return f"{results[name]}.clone()" if name in graph.views else results[name]

    def backward(self, graph: TrainingGraph, given: Sequence[str], first: bool) -> Any:
        """given inputs, loss, new statistics, gradients so far unless first -> gradients"""
        function = Function("run_backward", self._compiler)
        results = function.call(graph, self._arguments(function, graph, given))
        loss = function.give()
        fresh = {name: function.give() for name in self._layout.state}
        gathered = self._gather(function, results, loss, fresh, first)
        function.line(f"return {gathered}")
        return function.build()

    def _gather(
        self,
        function: Function,
        results: Mapping[str, str],
        loss: str,
        fresh: Mapping[str, str],
        first: bool,
    ) -> str:
        """Gradients as vectors, whether they are finite, and the statistics that are kept."""
        gradients = {p.name: results[p.gradient] for p in self._layout.parameters}
        new, vectors = [], []
        for i, tensors in enumerate(self._store.updates):
            joined = _joined(tensors.places, gradients, tensors.parameters.dtype)
            function.line(f"d{i} = {joined}")
            new.append(f"d{i}")
            vectors.append(self._add(function, tensors, f"d{i}", first))
        flag = function.bind(self._scalars.flag)
        function.line(f"finite = torch.isfinite({loss}).all() & are_finite({_list(new)})")
        function.line(f"{flag}.copy_({'finite' if first else f'{flag} & finite'})")
        if self._settings.clip_norm is not None:
            function.line(
                f"{function.bind(self._scalars.squares)}.copy_(squared({_list(vectors)}))"
            )
        for each in self._store.state:
            joined = _joined(each.places, fresh, each.vector.dtype)
            self._keep(function, function.bind(each.vector), joined)
        return _tuple(vectors)

    def _add(self, function: Function, tensors: UpdateTensors, new: str, first: bool) -> str:
        """The gradients so far, with the new ones."""
        if self._keeps_memory:
            held = function.bind(tensors.gradient_vector())
            function.line(f"{held}.{'copy_' if first else 'add_'}({new})")
            return held
        if first:
            return new
        held = function.give()
        function.line(f"{held}.add_({new})")
        return held

    # -- the update ----------------------------------------------------------------------------

    def update(self, graphs: Sequence[TrainingGraph]) -> Any:
        """gradients -> whether they were finite; every parameter is updated, if they were"""
        function = Function("update_parameters", self._compiler)
        scalars = self._scalars
        known = (scalars.count, scalars.first, scalars.rates, scalars.flag)
        count, first, rates, flag = map(function.bind, known)
        function.line(f"finite = {flag}.clone()")
        function.line(f"step, ahead = {count} + 1, ({count} - {first}).view(1)")
        for i, tensors in enumerate(self._store.updates):
            gradients = function.give()
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
        function: Function,
        graph: TrainingGraph,
        tensors: UpdateTensors,
        gradients: str,
        arguments: dict[str, str],
    ) -> None:
        places = _taken(function, tensors, gradients)
        arguments |= {source: name for source, _, name in places}
        results = function.call(graph, arguments)
        for _, target, _ in places:
            if target is not None and target in graph.views:
                function.line(f"{results[target]} = {results[target]}.clone()")
        for _, target, name in places:
            if target is not None:
                self._keep(function, name, results[target])

    def _keep(self, function: Function, held: str, new: str) -> None:
        """Write a tensor's new contents, if all is finite or nothing is to be skipped."""
        if self._settings.skip_nonfinite:
            new = f"torch.where(finite, {new}, {held})"
        function.line(f"{held}.copy_({new})")

    # -- inputs --------------------------------------------------------------------------------

    def _arguments(
        self, function: Function, graph: TrainingGraph, given: Sequence[str]
    ) -> dict[str, str]:
        """The inputs of a graph: from the store, or what is given, in that order."""
        arguments = {name: function.give() for name in given}
        others = {**self._store.frozen, **self._scalars.inputs}
        arguments |= {n: function.bind(t) for n, t in others.items() if n in graph.inputs}
        vectors = [(tensors.parameters, tensors.places) for tensors in self._store.updates]
        vectors += [(each.vector, each.places) for each in self._store.state]
        for vector, places in vectors:
            for name in places.shapes:
                if name in graph.inputs:
                    arguments[name] = function.bind_part(vector, places, name)
        return arguments


def _taken(function: Function, tensors: UpdateTensors, gradients: str) -> Taken:
    """The tensors of an update graph."""
    update = tensors.update
    places: Taken
    if update.flat:
        vectors = {"parameters": tensors.parameters, **tensors.slots}
        places = [(name, f"new_{name}", function.bind(v)) for name, v in vectors.items()]
        return [("gradients", None, gradients), *places]
    places = []
    for name in update.parameters:
        view = function.bind_part(tensors.parameters, tensors.places, name)
        places.append((name, f"{name}.new", view))
        places.append((f"{name}.gradient", None, f"{gradients}{_part(tensors.places, name)}"))
    for slot, held in tensors.slots.items():
        for name, tensor in held.items():
            places.append((f"{name}.{slot}", f"{name}.{slot}.new", function.bind(tensor)))
    return places


def _part(places: Places, name: str) -> str:
    where, shape = places.slices[name], tuple(places.shapes[name])
    return f"[{where.start}:{where.stop}].view({shape})"


def _joined(places: Places, tensors: Mapping[str, str], dtype: torch.dtype) -> str:
    """Tensors one behind the other, with zeros in the gaps."""
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


# -- what the source calls ---------------------------------------------------------------------


def are_finite(vectors: list[Tensor]) -> Tensor:
    """Whether every number is finite: of the largest, which no sum can make infinite.

    >>> are_finite([torch.tensor([3e38, 3e38])]), are_finite([torch.tensor([0.0, torch.nan])])
    (tensor(True), tensor(False))
    """
    largest = [torch.linalg.vector_norm(vector, torch.inf) for vector in vectors]
    return torch.stack([torch.isfinite(number) for number in largest]).all()


def squared(vectors: list[Tensor]) -> Tensor:
    """The sum of squares, in float64.

    >>> squared([torch.tensor([1.0, 2.0]), torch.tensor([3.0])])
    tensor(14., dtype=torch.float64)
    """
    norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in vectors]
    return torch.stack(norms).square().sum()


_HELPERS = {
    "are_finite": are_finite,
    "squared": squared,
    "pad": torch.nn.functional.pad,
}
