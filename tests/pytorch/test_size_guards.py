"""Which sizes a captured program accepts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
sympy = pytest.importorskip("sympy")

from onward.pytorch.size_guards import SizeGuards  # noqa: E402

n, m = sympy.Symbol("n", integer=True), sympy.Symbol("m", integer=True)


class _Size:
    """A size as torch.export has it."""

    def __init__(self, expr: object) -> None:
        self.node = self
        self.expr = expr


GUARDS = SizeGuards(
    [[_Size(n), 3], [_Size(n), _Size(m)], [_Size(n * 2)]], [sympy.Ge(n, 2), sympy.Le(m, 9)]
)


@pytest.mark.parametrize(
    ("shapes", "accepted"),
    [
        ([(4, 3), (4, 5), (8,)], True),
        ([(4, 2), (4, 5), (8,)], False),  # a fixed size
        ([(4, 3), (5, 5), (8,)], False),  # two sizes that must be equal
        ([(4, 3), (4, 5), (9,)], False),  # a computed size
        ([(1, 3), (1, 5), (2,)], False),  # a condition
        ([(4, 3), (4, 10), (8,)], False),
        ([(4, 3, 1), (4, 5), (8,)], False),  # the rank
    ],
)
def test_sizes_are_accepted_by_the_conditions_of_the_trace(
    shapes: list[tuple[int, ...]], accepted: bool
) -> None:
    tensors = [torch.empty(shape) for shape in shapes]
    for _ in range(2):  # the second answer is a remembered one
        assert GUARDS.accept(tensors) is accepted


def test_symbols_get_their_numbers() -> None:
    assert GUARDS.bind([(4, 3), (4, 5), (8,)]) == {n: 4, m: 5}
    assert GUARDS.dynamic_axes() == [[0], [0, 1], [0]]
