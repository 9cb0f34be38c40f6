"""Undoing what costs too much quality: as few of the worst groups as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.progress_steps import no_progress
from onward.compress.quality import Quality
from onward.compress.quantization import lossy_groups
from onward.compress.quantization.lossy_groups import TOO_LOSSY, RatedPlan, undo_lossy
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from onward.graph.builder import OpBuilder
from tests.models import mlp

NAMES = [f"n{number}" for number in range(10)]


class PlanQuantizer:
    """Writes models whose metadata has the plan, for a judge that reads it."""

    def __init__(self, form: NodeFormat) -> None:
        self.model, self.plan = mlp(), dict.fromkeys(NAMES, form)

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        return [[name] for name in plan]

    def write(self, plan: Plan) -> ir.Model:
        model = mlp()
        model.meta["plan"] = plan
        return model


class PlanJudge:
    """Every node costs what a table says, less with more bits."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.costs = costs
        self.rated = 0

    def rate(self, model: ir.Model) -> Quality:
        self.rated += 1
        plan = model.meta["plan"]
        lost = sum(self.costs.get(name, 0.0) * 4 / form.bits**2 for name, form in plan.items())
        return Quality(similarity=1 - lost, error=lost)

    def is_within(self, quality: Quality, drop: float) -> bool:
        return 1 - quality.similarity <= drop + 1e-12


def undo(form: NodeFormat, costs: dict[str, float], drop: float) -> tuple[Any, dict[str, str], int]:
    quantizer, judge, undone = PlanQuantizer(form), PlanJudge(costs), dict[str, str]()
    model = quantizer.write(quantizer.plan)
    start = RatedPlan(quantizer.plan, model, judge.rate(model))
    judges: Any = (judge, PlanJudge(costs))
    found = undo_lossy(quantizer, start, judges, drop, undone, no_progress)
    assert judge.is_within(found.quality, drop)
    return found.plan, undone, judge.rated


@pytest.mark.parametrize("worst", [1, 2, 3, 7, 9])
def test_the_fewest_nodes_are_undone(worst: int) -> None:
    costs = {name: (16.0 if place < worst else 0.0) for place, name in enumerate(NAMES)}
    plan, undone, _ = undo(NodeFormat(kind="static"), costs, drop=0.01)
    assert list(plan) == NAMES[worst:]
    assert undone == dict.fromkeys(NAMES[:worst], TOO_LOSSY)


def test_nothing_is_left_if_every_node_costs_too_much() -> None:
    plan, undone, _ = undo(NodeFormat(kind="static"), dict.fromkeys(NAMES, 16.0), drop=0.01)
    assert plan == {} and set(undone) == set(NAMES)


def test_weights_get_more_bits_before_they_are_undone() -> None:
    costs = {"n3": 0.01, "n5": 0.1, "n6": 0.4, "n7": 100.0}
    plan, undone, _ = undo(NodeFormat(kind="weights", bits=2), costs, drop=0.07)
    assert undone == {"n7": TOO_LOSSY}
    bits = {name: form.bits for name, form in plan.items()}
    assert bits["n6"] == 8 and bits["n5"] == 4 and bits["n3"] == bits["n1"] == 2


def test_few_plans_are_rated_on_all_data() -> None:
    costs = {name: (16.0 if place < 6 else 0.0) for place, name in enumerate(NAMES)}
    *_, rated = undo(NodeFormat(kind="static"), costs, drop=0.01)
    assert rated <= 8


def test_int8_groups_are_worth_their_work_and_weights_their_size() -> None:
    op = OpBuilder(18)
    x = op.input("x", "float32", ("batch", 4, "height", "width"))
    y = op.Conv(x, op.initializer("w", np.ones((4, 4, 1, 1), np.float32)))
    y = op.Flatten(op.GlobalAveragePool(y))
    model = op.model(y=op.MatMul(y, op.initializer("v", np.ones((4, 64), np.float32))))
    groups = [(str(node.name),) for node in model.graph if node.op_type in ("Conv", "MatMul")]
    feeds = {"x": np.zeros((2, 4, 32, 32), np.float32)}
    for kind, conv_is_worth_more in (("static", True), ("weights", False)):
        plan = {name: NodeFormat(kind=kind) for (name,) in groups}
        conv, product = lossy_groups._shares(model, plan, groups, feeds)
        assert (conv > product) == conv_is_worth_more
