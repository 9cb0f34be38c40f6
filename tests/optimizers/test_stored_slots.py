"""Slots that are stored in 16 bits: their types, their rounding, and the settings."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onward import optimizers
from onward.errors import OptionError
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.update_models import flat_update, named_update
from onward.training.optimizer_graph import plan_optimizer

STORED: list[tuple[Optimizer, dict[str, bool]]] = [
    (optimizers.AdamW(state_dtype="bf16"), {"exp_sum": False, "exp_sum_sq": True}),
    (
        optimizers.Adam(state_dtype="bf16", amsgrad=True, betas=(0.99, 0.9)),
        {"exp_sum": True, "exp_sum_sq": False, "max_exp_sum_sq": False},
    ),
    (optimizers.LAMB(state_dtype="bf16"), {"exp_sum": False, "exp_sum_sq": True}),
    (optimizers.Lion(state_dtype="bf16"), {"exp_sum": True}),
    (optimizers.SGD(momentum=0.9, state_dtype="bf16"), {"momentum_buffer": False}),
    (optimizers.SGD(state_dtype="bf16"), {}),
    (optimizers.AdamW(), {}),
]


@pytest.mark.parametrize(("optimizer", "stochastic"), STORED, ids=repr)
def test_slots_that_change_slowly_are_rounded_at_random(
    optimizer: Optimizer, stochastic: dict[str, bool]
) -> None:
    found = optimizer.stored_slots()
    assert {slot: each.stochastic for slot, each in found.items()} == stochastic
    assert {each.dtype for each in found.values()} <= {"bfloat16"}


@pytest.mark.parametrize(("optimizer", "stochastic"), STORED, ids=repr)
def test_updates_take_and_return_slots_in_their_types(
    optimizer: Optimizer, stochastic: dict[str, bool]
) -> None:
    model = named_update(optimizer, {"w": ("float32", (2, 3))})
    inputs = {str(value.name): value.dtype for value in model.graph.inputs}
    outputs = {str(value.name): value.dtype for value in model.graph.outputs}
    assert inputs["w"] == outputs["w.new"] == ir.DataType.FLOAT
    for slot in optimizer.slots((2, 3)):
        kind = ir.DataType.BFLOAT16 if slot in stochastic else ir.DataType.FLOAT
        assert inputs[f"w.{slot}"] == outputs[f"w.{slot}.new"] == kind


def test_each_slot_has_random_numbers_of_its_own() -> None:
    optimizer = optimizers.Adam(betas=(0.99, 0.999), state_dtype="bf16")
    model = flat_update(optimizer)
    calls = [node for node in model.graph if node.op_type == "StochasticRound"]
    assert len({call.attributes["node"].as_int() for call in calls}) == len(calls) == 2
    assert sum(node.op_type == "RandomKey" for node in model.graph) == 1


def test_another_type_is_refused() -> None:
    with pytest.raises(OptionError, match=r"AdamW\.state_dtype must be 'bf16', not 'fp16'"):
        optimizers.AdamW(state_dtype="fp16")


def test_the_setting_is_part_of_the_record() -> None:
    optimizer = optimizers.AdamW(state_dtype="bf16")
    assert optimizers.optimizer_from_dict(optimizer.to_dict()) == optimizer


def test_artifacts_refuse_slots_in_16_bits() -> None:
    law = r"artifacts keep the state of optimizers in float32, not in 16 bits: AdamW.*\nleave"
    with pytest.raises(OptionError, match=law):
        plan_optimizer(
            optimizers.AdamW(state_dtype="bf16"),
            (),
            {"w": (2,)},
            ir.DataType.from_numpy(np.dtype("float32")),
        )
