"""An Einsum of two operands becomes a MatMul whose operands are read in place, or a Mul."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onward
from onward.passes.pipelines import GRADIENT_SIMPLIFICATIONS, TRAINING
from onward.passes.rewrite import rewrite

SIZES = {"b": 2, "t": 3, "d": 4, "e": 5, "i": 6, "o": 1}
DYNAMIC = {"b", "t"}  # a batch and a length


def model_of(equation: str, declared: dict[str, int | str]) -> ir.Model:
    op = onward.OpBuilder()
    terms = equation.split("->")[0].split(",")
    shapes = [tuple(declared[letter] for letter in term) for term in terms]
    values = [op.input(f"x{i}", "float64", shape) for i, shape in enumerate(shapes)]
    return TRAINING(op.model(y=op.Einsum(*values, equation=equation)))


def compare(equation: str, *, dynamic: bool, sizes: dict[str, int] = SIZES) -> list[str]:
    """The operators of the rewritten model, after its answers were compared with numpy's."""
    declared = {c: c if dynamic and c in DYNAMIC else n for c, n in SIZES.items()}
    model = model_of(equation, declared)
    rewrite(model, GRADIENT_SIMPLIFICATIONS)
    rng = np.random.default_rng(0)
    terms = equation.split("->")[0].split(",")
    arrays = [rng.normal(size=[sizes[letter] for letter in term]) for term in terms]
    options = onward.SessionOptions(graph_optimization_level=0)
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    [found] = onward.InferenceSession(model, options).run(None, feeds)
    expected = np.einsum(equation, *arrays)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("equation", "transposes"),
    [
        ("bid,bde->bie", 0),
        ("btd,edi->btei", 1),  # the weights, which are smaller than the result
        ("btei,eid->bted", 2),  # one of them is read in place
        ("bted,btei->eid", 2),  # both are read in place
        ("btei,btd->edi", 2),
        ("btei,edi->btd", 1),
        ("bte,bted->btd", 0),
        ("btd,bted->bte", 0),
        ("btei,btdi->bted", 1),
        ("t,t->", 0),
        ("oi,io->", 0),
    ],
)
def test_products_are_matmuls(equation: str, transposes: int, dynamic: bool) -> None:
    made = compare(equation, dynamic=dynamic)
    assert "Einsum" not in made and made.count("MatMul") == 1
    assert made.count("Transpose") == transposes


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("equation", ["bt,t->bt", "bt,bt->tb", "bd,ei->ebdi", "t,bt->bt"])
def test_a_product_without_a_sum_is_a_mul(equation: str, dynamic: bool) -> None:
    assert "Mul" in (made := compare(equation, dynamic=dynamic)) and "Einsum" not in made


@pytest.mark.parametrize("empty", ["b", "t"])
@pytest.mark.parametrize("equation", ["btei,eid->bted", "bted,btei->eid", "btei,btd->edi"])
def test_empty_batches(equation: str, empty: str) -> None:
    assert "MatMul" in compare(equation, dynamic=True, sizes=SIZES | {empty: 0})


def test_an_axis_that_may_be_repeated_stays() -> None:
    """An axis of size 1 meets one of size n: MatMul would refuse it."""
    op = onward.OpBuilder()
    x, y = op.input("x", "float64", ("b", "n")), op.input("y", "float64", ("m", 4))
    model = TRAINING(op.model(y=op.Einsum(x, y, equation="bn,nd->bd")))
    rewrite(model, GRADIENT_SIMPLIFICATIONS)
    assert [node.op_type for node in model.graph] == ["Einsum"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_equations(data: st.DataObject) -> None:
    term = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=4, unique=True)
    left, right = ("".join(data.draw(term)) for _ in range(2))
    used = sorted({*left, *right})
    result = "".join(data.draw(st.permutations(used)))[: data.draw(st.integers(0, len(used)))]
    compare(f"{left},{right}->{result}", dynamic=data.draw(st.booleans()))
