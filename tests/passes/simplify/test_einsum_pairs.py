"""An Einsum of several operands is computed two at a time, in the order of the least work."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onward
from onward.passes.pipelines import TRAINING

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1}


def model_of(equation: str, shapes: list[tuple[int | str, ...]]) -> ir.Model:
    op = onward.OpBuilder()
    values = [op.input(f"x{i}", "float64", shape) for i, shape in enumerate(shapes)]
    return op.model(y=op.Einsum(*values, equation=equation))


def compare(equation: str, shapes: list[tuple[int, ...]], *, dynamic: bool = False) -> ir.Model:
    """The simplified model, after its answers were compared with numpy's."""
    declared = [tuple(f"n{n}" for n in shape) if dynamic else shape for shape in shapes]
    model = TRAINING(model_of(equation, declared))
    rng = np.random.default_rng(0)
    feeds = {f"x{i}": rng.normal(size=shape) for i, shape in enumerate(shapes)}
    expected = np.einsum(equation, *np_operands(equation, feeds.values()))
    options = onward.SessionOptions(graph_optimization_level=0)
    [found] = onward.InferenceSession(model, options).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    return model


def np_operands(equation: str, values: Any) -> list[Any]:
    """Operands with axes of size 1 repeated, where numpy asks for it."""
    terms = equation.split("->")[0].split(",")
    if "..." in equation:
        return list(values)
    sizes: dict[str, int] = {}
    for term, value in zip(terms, values):
        for letter, size in zip(term, value.shape):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return [np.broadcast_to(v, [sizes[c] for c in t]) for t, v in zip(terms, values)]


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_sums_are_taken_as_soon_as_possible() -> None:
    """Experts: the gate first, then one product; no tensor has all five axes."""
    shapes = [(2, 3, 4, 8), (4, 8, 5), (2, 3, 4)]
    model = compare("btei,eid,bte->btd", shapes, dynamic=True)
    assert kinds(model) == ["Unsqueeze", "Mul", "Einsum"]
    assert max(len(node.outputs[0].shape or ()) for node in model.graph) == 4


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk,kl,lm->im", [(2, 3), (3, 4), (4, 5), (5, 2)]),
        ("ij,jk,kl", [(2, 3), (3, 4), (4, 5)]),  # without a result
        ("...ij,...jk,k->...i", [(6, 2, 3), (6, 3, 4), (4,)]),
        ("...i,i,i->...", [(2, 3, 4), (4,), (4,)]),
        ("a,b,c->cab", [(2,), (3,), (4,)]),
        ("ab,ab,ab->", [(2, 3)] * 3),
        ("ab,bc,ca->", [(2, 3), (3, 4), (4, 2)]),
        (",ab,b->a", [(), (2, 3), (3,)]),
        ("ab,ab,b->a", [(2, 1), (2, 3), (3,)]),
        ("a,a,b,b,c,c,d,d->abcd", [(2,), (2,), (3,), (3,), (2,), (2,), (3,), (3,)]),
    ],
)
def test_answers_are_those_of_the_equation(equation: str, shapes: list[tuple[int, ...]]) -> None:
    model = compare(equation, shapes)
    einsums = [node for node in model.graph if node.op_type == "Einsum"]
    assert all(len(node.inputs) <= 2 for node in einsums)


def test_a_diagonal_stays() -> None:
    model = TRAINING(model_of("ii,ij,j->i", [(3, 3), (3, 3), (3,)]))
    assert kinds(model) == ["Einsum"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_equations(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    term = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3, unique=True)
    terms = ["".join(data.draw(term)) for _ in range(count)]
    used = sorted({*"".join(terms)})
    result = "".join(data.draw(st.permutations(used)))[: data.draw(st.integers(0, len(used)))]
    shapes = [tuple(SIZES[letter] for letter in each) for each in terms]
    compare(f"{','.join(terms)}->{result}", shapes)
