"""Optimizer plans and graphs: the optimizer of each parameter, and its slots."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onward.errors import OptionError
from onward.optimizers.adam import AdamW
from onward.optimizers.clip import ClipByNorm
from onward.optimizers.groups import Group
from onward.optimizers.sgd import SGD
from onward.providers.ort.bound_session import BoundSession
from onward.training import optimizer_graph
from onward.training.api.optimizer_updates import read_updates

SHAPES = {"w": (3, 4), "b": (4,)}
FLOAT = ir.DataType.FLOAT


def graph_of(plan: optimizer_graph.OptimizerPlan) -> ir.Model:
    model = ir.Model(
        ir.Graph((), (), nodes=(), opset_imports={"": 21}, name="update"), ir_version=10
    )
    optimizer_graph.add_inputs(model.graph, plan)
    return optimizer_graph.write_update(model, plan)


def test_slots_have_the_peers_names() -> None:
    theirs = optimizer_graph.plan_optimizer(AdamW(style="transformers"), [], SHAPES, FLOAT)
    assert theirs.sequences == {
        "exp_avg": "first_order_moments",
        "exp_avg_sq": "second_order_moments",
    }
    ours = optimizer_graph.plan_optimizer(SGD(momentum=0.9), [], SHAPES, FLOAT)
    assert ours.sequences == {"momentum_buffer": "momentum_buffer"}


def test_groups_share_the_sequences_of_all_their_optimizers() -> None:
    groups = [Group(parameters="b", optimizer=SGD(momentum=0.9))]
    plan = optimizer_graph.plan_optimizer(AdamW(style="transformers"), groups, SHAPES, FLOAT)
    assert list(plan.sequences) == ["exp_avg", "exp_avg_sq", "momentum_buffer"]
    inputs = [value.name for value in graph_of(plan).graph.inputs]
    assert inputs[4:] == list(plan.sequences.values())
    assert list(plan.layout["momentum_buffer"]) == ["b"]


def test_a_group_that_matches_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="no parameter matches 'c'"):
        optimizer_graph.plan_optimizer(SGD(), [Group(parameters="c", lr=0.1)], SHAPES, FLOAT)


def test_scalars_that_all_parameters_need_are_computed_once() -> None:
    one, two = (
        len(graph_of(optimizer_graph.plan_optimizer(AdamW(), [], shapes, FLOAT)).graph)
        for shapes in ({"w": (3, 4)}, SHAPES)
    )
    assert two - one <= 16  # four SequenceAt, and the formula


@pytest.mark.parametrize("kind", [FLOAT, ir.DataType.DOUBLE], ids=str)
def test_packed_updates_are_clipped_in_either_type(kind: ir.DataType) -> None:
    plan = optimizer_graph.plan_optimizer(SGD(), [], SHAPES, kind)
    model = graph_of(plan)
    optimizer_graph.attach_updates(model, plan, ClipByNorm(max_norm=1.0))
    packed = read_updates(model.metadata_props)
    assert packed is not None and packed.clip_norm == 1.0
    session = BoundSession(packed.graphs[0].graph)
    numbers = kind.numpy().type
    fed = {"parameters": [1, 1], "gradients": [3, 4], "learning_rate": 0.5, "gradient_scale": 1}
    for name, value in fed.items():
        session.bind_input(name, np.array(value, numbers))
    session.bind_input("step", np.array(1))
    session.bind_input("norm_squared", np.array(25.0))
    [found] = session.run()
    np.testing.assert_allclose(found.numpy(), [0.7, 0.6], rtol=1e-6)


def test_half_precision_has_float32_slots() -> None:
    plan = optimizer_graph.plan_optimizer(AdamW(), [], SHAPES, ir.DataType.FLOAT16)
    kinds = {value.name: value.type.elem_type.dtype for value in graph_of(plan).graph.inputs[2:]}  # type: ignore[union-attr]
    assert kinds["params"] == kinds["gradients"] == ir.DataType.FLOAT16
    assert {kinds[name] for name in plan.sequences.values()} == {FLOAT}
