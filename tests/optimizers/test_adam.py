"""Adam and AdamW are torch's, in few passes; AdamW also as the transformers library had it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import Array, Tensors, by_formula, by_graph, by_torch, distance, passes

# class, options, passes over the vector, passes with a gradient scale
CASES: list[tuple[Any, dict[str, Any], int, int]] = [
    (Adam, {}, 10, 11),
    (Adam, {"maximize": True}, 10, 11),
    (Adam, {"weight_decay": 0.1}, 12, 13),
    (Adam, {"weight_decay": 0.1, "maximize": True, "amsgrad": True}, 13, 14),
    (Adam, {"amsgrad": True, "betas": (0.8, 0.9)}, 11, 12),
    (Adam, {"betas": (0.0, 0.5), "eps": 1e-3}, 10, 11),
    (AdamW, {}, 11, 12),
    (AdamW, {"weight_decay": 0.0}, 10, 11),
    (AdamW, {"maximize": True, "eps": 1e-2}, 11, 12),
    (AdamW, {"amsgrad": True, "betas": (0.8, 0.9), "weight_decay": 0.2}, 12, 13),
    (AdamW, {"eps": 0.0}, 10, 11),
]


@pytest.mark.parametrize(("kind", "options", "plain", "scaled"), CASES, ids=lambda case: str(case))
def test_adam_matches_torch(kind: Any, options: dict[str, Any], plain: int, scaled: int) -> None:
    optimizer, peer = kind(lr=0.003, **options), getattr(torch.optim, kind.__name__)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-13)):
        expected = by_torch(peer, dtype=dtype, lr=0.003, **options)
        assert distance(by_graph(optimizer, dtype=dtype), expected) < bound
        assert distance(by_graph(optimizer, dtype=dtype, scale=0.25), expected) < bound
    assert passes(flat_update(optimizer)) == plain
    assert passes(flat_update(optimizer, scaled=True)) == scaled


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_defaults_of_adam_are_those_of_torch(kind: Any) -> None:
    defaults = getattr(torch.optim, kind.__name__)([torch.zeros(1)]).defaults
    shared = set(kind().to_dict()) & set(defaults)
    assert set(kind().to_dict()) - shared <= {"kind", "correct_bias", "style", "state_dtype"}
    assert all(getattr(kind(), name) == defaults[name] for name in shared)


def test_the_slots_are_proportional_to_torchs_moments() -> None:
    found = by_graph(AdamW(lr=0.01, amsgrad=True, betas=(0.9, 0.99)), dtype="float64")
    p = torch.zeros(257, dtype=torch.float64)
    peer = torch.optim.AdamW([p], lr=0.01, amsgrad=True, betas=(0.9, 0.99))

    def remember(p_now: Array, g: Array, slots: Tensors, step: int) -> Array:
        p.grad = torch.from_numpy(g)
        peer.step()
        return p_now

    by_formula(remember)
    state = peer.state[p]
    np.testing.assert_allclose(0.1 * found["w.exp_sum"], state["exp_avg"], rtol=1e-12)
    np.testing.assert_allclose(0.01 * found["w.exp_sum_sq"], state["exp_avg_sq"], rtol=1e-12)
    np.testing.assert_allclose(0.01 * found["w.max_exp_sum_sq"], state["max_exp_avg_sq"], 1e-12)


@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize("style", ["torch", "transformers"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_each_style_is_its_formula(correct_bias: bool, style: str, weight_decay: float) -> None:
    b1, b2, eps, lr = 0.9, 0.99, 1e-2, 0.003

    def formula(p: Array, g: Array, slots: Tensors, step: int) -> Array:
        m = slots["m"] = b1 * slots.get("m", 0.0 * g) + (1 - b1) * g
        v = slots["v"] = b2 * slots.get("v", 0.0 * g) + (1 - b2) * g * g
        c1, c2 = (1 - b1**step, 1 - b2**step) if correct_bias else (1.0, 1.0)
        if style == "torch":
            p = p - lr * weight_decay * p
            return p - lr * (m / c1) / (np.sqrt(v / c2) + eps)
        p = p - lr * np.sqrt(c2) / c1 * m / (np.sqrt(v) + eps)
        return p - lr * weight_decay * p

    optimizer = AdamW(
        lr=0.003,
        betas=(b1, b2),
        eps=eps,
        weight_decay=weight_decay,
        correct_bias=correct_bias,
        style=style,
    )
    expected = by_formula(formula)
    assert distance(by_graph(optimizer, dtype="float64"), expected) < 1e-13
    assert distance(by_graph(optimizer, dtype="float64", scale=0.25), expected) < 1e-13
    assert distance(by_graph(optimizer), expected) < 1e-5


def test_the_transformers_style_keeps_averages_in_thirteen_passes() -> None:
    optimizer = AdamW(style="transformers", eps=1e-6)
    assert passes(flat_update(optimizer)) == 13
    assert passes(flat_update(optimizer, scaled=True)) == 13  # the scale hides in the factors
    assert list(optimizer.slots((2,))) == ["exp_avg", "exp_avg_sq"]
    found = by_graph(optimizer, dtype="float64")

    def formula(p: Array, g: Array, slots: Tensors, step: int) -> Array:
        slots["v"] = 0.999 * slots.get("v", 0.0 * g) + 0.001 * g * g
        return slots["v"]

    np.testing.assert_allclose(found["w.exp_avg_sq"], by_formula(formula)["w"], rtol=1e-12)


def test_the_correction_keeps_its_digits_after_a_million_steps_and_at_the_first() -> None:
    """With beta2 = 0.9999 a float32 would have lost three digits of 1 - beta2."""
    for betas in ((0.9, 0.9999), (0.99, 0.99999)):
        expected = by_torch(torch.optim.AdamW, lr=0.01, betas=betas)
        assert distance(by_graph(AdamW(lr=0.01, betas=betas)), expected) < 1e-5
