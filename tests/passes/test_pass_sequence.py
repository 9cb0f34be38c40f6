"""Pipelines run passes in order and report each of them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onward.errors import OptionError
from onward.passes.pass_sequence import IfChanged, PassRecord, PassSequence
from onward.passes.pipelines import PREPARE, Level, inference
from tests.passes.one_graph import built


def drop_last(model: ir.Model) -> ir.Model:
    """Shortens a chain from behind."""
    last = model.graph[-1]
    if len(model.graph) > 1 and last.inputs[0] is not None:
        model.graph.outputs[0] = last.inputs[0]
        model.graph.remove(last, safe=True)
    return model


def chain() -> ir.Model:
    return built(lambda op, x: op.Relu(op.Neg(op.Exp(op.Abs(x)))), (2,))


def test_a_report_has_a_step_for_each_pass() -> None:
    report: list[PassRecord] = []
    PassSequence("twice", (drop_last, drop_last))(chain(), report)
    assert [(step.name, step.nodes_before, step.nodes_after) for step in report] == [
        ("drop_last", 4, 3),
        ("drop_last", 3, 2),
    ]
    assert all(step.seconds >= 0 for step in report)


def test_rounds_continue_while_nodes_decrease() -> None:
    report: list[PassRecord] = []
    model = PassSequence("often", (drop_last,), rounds=10)(chain(), report)
    assert len(model.graph) == 1 and len(report) == 4


def test_rounds_are_bounded() -> None:
    assert len(PassSequence("often", (drop_last,), rounds=2)(chain()).graph) == 2


def test_a_pipeline_in_a_pipeline_reports_its_passes() -> None:
    report: list[PassRecord] = []
    inner = PassSequence("inner", (drop_last,))
    both = inner + PassSequence("outer", (inner,))
    both(chain(), report)
    assert [step.name for step in report] == ["drop_last"] * 2
    assert both.names == ("inner", "outer")


def test_a_pass_is_skipped_until_a_node_changes() -> None:
    runs: list[int] = []

    def count(model: ir.Model) -> ir.Model:
        runs.append(len(model.graph))
        return model

    def negate_alpha(model: ir.Model) -> ir.Model:
        node = model.graph[0]
        node.attributes["alpha"] = ir.AttrFloat32("alpha", -1.0)
        return model

    counted = IfChanged(count)
    twice = PassSequence("twice", (counted, counted))
    sequence = twice + PassSequence("changes", (drop_last, twice, negate_alpha, twice))
    sequence(built(lambda op, x: op.Neg(op.Neg(op.LeakyRelu(x, alpha=0.1))), (2,)))
    assert runs == [3, 2, 2]
    sequence(chain())
    assert len(runs) == 6  # another call starts with nothing skipped


@pytest.mark.parametrize("level", [0, 1, 2, 3, 99])
def test_onnxruntimes_levels_exist(level: int) -> None:
    inference(level)(PREPARE(chain()))
    assert Level(level) in Level


def test_level_0_changes_nothing() -> None:
    model = PREPARE(built(lambda op, x: op.Relu(op.Identity(x)), (2,)))
    assert len(inference(0)(model).graph) == 2


def test_any_other_level_is_refused() -> None:
    with pytest.raises(OptionError, match="graph optimisation level 7 does not exist"):
        inference(7)
