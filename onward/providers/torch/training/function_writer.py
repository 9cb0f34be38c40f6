"""FunctionWriter: writes a function of a training step as Python source around lowered graphs.

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
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import torch

from onward.programs.vector_offsets import Places
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.lowering import TorchGraph
from onward.providers.torch.training.store import view_in

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

_serial = count()


class FunctionWriter:
    """Writes a function: its lines, and the tensors that are bound to it."""

    def __init__(self, name: str, compiler: Compiler | None) -> None:
        self._name, self._compiler = name, compiler
        self._bound: dict[int, tuple[str, Tensor, Tensor]] = {}  # id -> name, as given, tensor
        self._arguments_given: list[str] = []
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"torch": torch, **_HELPERS}

    @property
    def is_compiled(self) -> bool:
        return self._compiler is not None

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
        return f"{self.bind(vector)}{view_expression(places, name)}"

    def bind_function(self, function: Callable[..., Any]) -> str:
        """Bind a function that lines call; its name."""
        name = f"function_{len(self._names)}"
        self._names[name] = function
        return name

    def add_argument(self) -> str:
        """Add an argument that each call passes; its name."""
        self._arguments_given.append(f"a{len(self._arguments_given)}")
        return self._arguments_given[-1]

    def call(self, graph: TorchGraph, arguments: Mapping[str, str]) -> dict[str, str]:
        """Write the call of a lowered graph; the names of its results."""
        function = self.bind_function(graph.module.forward)
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


def view_expression(places: Places, name: str) -> str:
    where, shape = places.slices[name], tuple(places.shapes[name])
    return f"[{where.start}:{where.stop}].view({shape})"


def list_expression(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def tuple_expression(names: Iterable[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


# -- functions that the source calls -----------------------------------------------------------


def are_finite(vectors: list[Tensor]) -> Tensor:
    """Whether every number is finite: by the ends, since a sum of finite ones can overflow.

    Not by the infinity norm, which a CPU computes slowly outside of compiled code.

    >>> are_finite([torch.tensor([3e38, 3e38])]), are_finite([torch.tensor([0.0, torch.nan])])
    (tensor(True), tensor(False))
    """
    ends = [end for vector in vectors for end in torch.aminmax(vector)]
    return torch.stack([torch.isfinite(number) for number in ends]).all()


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
