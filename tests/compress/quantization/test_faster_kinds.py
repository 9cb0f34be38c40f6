"""Choosing between kinds of formats by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import pytest

from onward.compress.progress_steps import no_progress
from onward.compress.quantization import faster_kinds
from onward.compress.quantization.faster_kinds import choose_kinds
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from tests.models import mlp

STATIC, DYNAMIC = NodeFormat(kind="static"), NodeFormat(kind="dynamic")


class TwoKinds:
    """Writes models whose metadata has the plan; every node has two kinds."""

    refused: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.model = mlp()
        names = [str(node.name) for node in self.model.graph if node.op_type in ("MatMul", "Gemm")]
        self.plan: Plan = dict.fromkeys(names or ["a", "b"], STATIC)

    def groups(self, plan: Plan) -> list[list[str]]:
        return [[name] for name in plan]

    def other_kinds(self, plan: Plan) -> Plan:
        return {name: replace(form, kind="dynamic") for name, form in plan.items()}

    def write(self, plan: Plan) -> ir.Model:
        model = mlp()
        model.meta["plan"] = plan
        return model


@pytest.mark.parametrize("cost", [0.9, 0.999, 1.1])
def test_the_faster_kind_is_chosen(cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer = TwoKinds()

    def timed(models: Mapping[str, ir.Model], *_: Any, **__: Any) -> dict[str, float]:
        plans = {name: model.meta["plan"] for name, model in models.items()}
        return {
            n: 1 + sum(cost if f == DYNAMIC else 1 for f in p.values()) for n, p in plans.items()
        }

    monkeypatch.setattr(faster_kinds, "time_in_turns", timed)
    chosen = choose_kinds(quantizer, quantizer.plan, {}, [], no_progress)
    assert set(chosen.values()) == {DYNAMIC if cost == 0.9 else STATIC}
