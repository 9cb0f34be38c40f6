"""SizeGuards: which sizes of inputs a captured program is valid for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

_REMEMBERED = 1024  # shapes whose answer is kept


class SizeGuards:
    """The conditions on input sizes under which torch.export traced a module.

    A size is a number that must be met, a symbol that takes any number, or an expression of
    symbols; `conditions` are further relations between the symbols.
    """

    def __init__(
        self, shapes: Sequence[Sequence[Any]], conditions: Iterable[sympy.Basic] = ()
    ) -> None:
        self.shapes = [tuple(map(_expression, shape)) for shape in shapes]
        self.conditions = [c for c in conditions if c is not sympy.true]
        self._known: dict[tuple[Any, ...], bool] = {}

    def accept(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the program is valid for tensors of these sizes."""
        key = tuple([tensor.shape for tensor in tensors])
        answer = self._known.get(key)
        if answer is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            answer = self._known[key] = self.bind(key) is not None
        return answer

    def bind(self, shapes: Sequence[Sequence[int]]) -> dict[sympy.Symbol, int] | None:
        """The number of each symbol for these shapes; None if a condition is not met."""
        numbers: dict[sympy.Symbol, int] = {}
        computed: list[tuple[sympy.Expr, int]] = []
        for expected, shape in zip(self.shapes, shapes, strict=True):
            if len(expected) != len(shape):
                return None
            for size, number in zip(expected, shape):
                if isinstance(size, int):
                    if size != number:
                        return None
                elif isinstance(size, sympy.Symbol):
                    if numbers.setdefault(size, number) != number:
                        return None
                else:
                    computed.append((size, number))
        if any(size.xreplace(numbers) != number for size, number in computed):
            return None
        met = (condition.xreplace(numbers) for condition in self.conditions)
        return None if any(each == sympy.false for each in met) else numbers

    def dynamic_axes(self) -> list[list[int]]:
        """The axes of each input whose size is not fixed."""
        return [[i for i, n in enumerate(s) if not isinstance(n, int)] for s in self.shapes]


def _expression(size: Any) -> Any:
    """A size as a Python int or a sympy expression."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression) if expression.is_number else expression
