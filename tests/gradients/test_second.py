"""Second derivatives: the gradient of a gradient, from the tables of cases, one for each rule.

With x and dy a case's inputs and cotangents, G(x, dy) its gradients and v random, the slopes of
<v, G> along random directions of x and of dy must be what the second gradient says; where G does
not depend on x, they must be 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.gradients.model import SUFFIX, gradient
from onward.graph.scopes import reads
from tests.gradients.case import Case
from tests.gradients.test_rules import CASES, TORCH, cotangents, extend

STRAIGHT_THROUGH = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}  # no limits
STEP, TOLERANCE = 1e-5, 1e-5
MORE = {  # where a factor of a product is 0: what is divided by elsewhere
    "ReduceProd, zeros",
    "ReduceProd, a zero among all",
    "CumProd, zeros",
    "CumProd, zeros, exclusive",
    "CumProd, zeros, reverse",
    "CumProd, zeros, exclusive, reverse",
    "ScatterElements, mul, zeros",
    "ScatterND, mul, zeros",
    "Pow, integers, of zero",
}


def chosen() -> Iterator[Case]:
    """The first case of each rule of the default domain, and those that are named above."""
    seen = set()
    for case in CASES:
        first = case.differences and "::" not in case.operator and case.operator not in seen
        if first or case.name in MORE:
            yield case
        if first:
            seen.add(case.operator)


@pytest.mark.sampled("case.build.__module__", last=True)
@pytest.mark.parametrize("case", list(chosen()), ids=lambda case: case.name)
def test_a_gradients_gradient_is_its_central_difference(case: Case) -> None:
    slopes = Slopes(case)
    rng = np.random.default_rng(3)
    for name, found in slopes.second().items():
        x = slopes.feeds[name]
        for _ in range(3 if x.size else 0):
            d = np.asarray(rng.normal(size=x.shape))
            d /= np.linalg.norm(d)
            ahead, behind = (slopes.at({name: x + s * STEP * d}) for s in (1, -1))
            expected, given = (ahead - behind) / (2 * STEP), float(np.sum(found * d))
            allowed = TOLERANCE * (1 + abs(expected) + float(np.linalg.norm(found)))
            assert given == pytest.approx(expected, rel=0, abs=allowed), name


def test_every_rule_but_the_straight_through_ones_is_shown() -> None:
    everything = {case.operator for case in CASES if "::" not in case.operator}
    assert everything - {case.operator for case in chosen()} == STRAIGHT_THROUGH
    assert {case.name for case in CASES} >= MORE


class Slopes:
    """<v, G(x, dy)> of a case, and its gradient."""

    def __init__(self, case: Case) -> None:
        self._first = extend(case, case.model())
        self._session = onward.InferenceSession(self._first, providers=TORCH)
        self._names = [f"{name}{SUFFIX}" for name in case.floats]
        given = {**case.feeds, **cotangents(case)}
        self.feeds = {arg.name: given[arg.name] for arg in self._session.get_inputs()}
        self._floats = [n for n in (*case.floats, *cotangents(case)) if n in self.feeds]
        rng = np.random.default_rng(1)
        found = self._session.run(self._names, self.feeds)
        self._v = {f"{n}_v": rng.normal(size=g.shape) for n, g in zip(self._names, found)}

    def at(self, moved: dict[str, Any]) -> float:
        found = self._session.run(self._names, {**self.feeds, **moved})
        return sum(float(np.sum(v * g)) for v, g in zip(self._v.values(), found))

    def second(self) -> dict[str, Any]:
        """The gradient of each float feed: zeros where G does not depend on it."""
        wrt = [name for name in self._floats if name in needed(self._first, self._names)]
        found = {name: np.zeros(self.feeds[name].shape) for name in self._floats}
        twice = gradient(self._first, dict(zip(self._names, self._v)), wrt)
        session = onward.InferenceSession(twice, providers=TORCH)
        feeds = {**self.feeds, **self._v}
        feeds = {arg.name: feeds[arg.name] for arg in session.get_inputs()}
        names = [str(y.name) for y in twice.graph.outputs][-len(wrt) :]
        return {**found, **dict(zip(wrt, session.run(names, feeds)))}


def needed(model: ir.Model, outputs: list[str]) -> set[str]:
    """The names of everything that these outputs are made of."""
    values = {y for y in model.graph.outputs if y.name in outputs}
    for node in reversed(model.graph):
        if any(y in values for y in node.outputs):
            values.update(reads(node))
    return {str(value.name) for value in values}
