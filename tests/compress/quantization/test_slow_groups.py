"""Undoing what is slower: kinds of nodes are timed with and without integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import no_progress
from onward.compress.quantization.node_clusters import make_clusters, make_groups
from onward.compress.quantization.slow_groups import SLOWER, undo_slow
from onward.sessions.inference import InferenceSession
from tests.compress.quantization.conftest import WEIGHTS, Cost, chain
from tests.compress.quantization.simple_quantizer import SimpleQuantizer

MATMULS = ["MatMul_0", "MatMul_2", "MatMul_4"]


def make(model: ir.Model, rows: dict[str, Any]) -> SimpleQuantizer:
    quantizer = SimpleQuantizer(model, Calibration(rows, InferenceSession(model).get_inputs()))
    quantizer.plan = {name: quantizer.plan[name] for name in MATMULS}
    return quantizer


def undo(quantizer: SimpleQuantizer) -> tuple[list[str], dict[str, str]]:
    undone: dict[str, str] = {}
    plan = undo_slow(quantizer, quantizer.plan, {}, ["CPUExecutionProvider"], undone, no_progress)
    return list(plan), undone


def test_only_slower_nodes_are_undone(
    model: ir.Model, rows: dict[str, Any], set_times: Callable[[Cost], None]
) -> None:
    costs = {"w0": 0.3, "w1": -0.2, "w2": 0.1}  # of each weight in int8
    set_times(
        lambda model: (
            1 + sum(c for w, c in costs.items() if f"{w}_int8" in model.graph.initializers)
        )
    )
    plan, undone = undo(make(model, rows))
    assert plan == ["MatMul_2"]
    assert undone == {"MatMul_0": SLOWER, "MatMul_4": SLOWER}


def test_noise_undoes_nothing(
    model: ir.Model, rows: dict[str, Any], set_times: Callable[[Cost], None]
) -> None:
    set_times(lambda model: 1 + 0.01 * len(model.graph.initializers) / 10)
    assert undo(make(model, rows)) == (MATMULS, {})


def test_nodes_that_are_alike_are_one_cluster(rows: dict[str, Any]) -> None:
    square = WEIGHTS[0][:, :16]
    quantizer = make(chain(square, square, WEIGHTS[0]), rows)
    clusters = make_clusters(quantizer, quantizer.plan, 12)
    assert [each.names for each in clusters] == [["MatMul_4"], ["MatMul_0", "MatMul_2"]]
    assert [each.text for each in clusters] == ["MatMul (16, 64)", "MatMul (16, 16)"]
    (joined,) = make_clusters(quantizer, quantizer.plan, 1)
    assert sorted(joined.names) == MATMULS and joined.text == "the smaller nodes"


def test_neighbours_are_joined_if_there_are_too_many_groups(
    model: ir.Model, rows: dict[str, Any]
) -> None:
    quantizer = make(model, rows)
    assert make_groups(quantizer, quantizer.plan, 40) == [(name,) for name in MATMULS]
    assert make_groups(quantizer, quantizer.plan, 2) == [tuple(MATMULS[:2]), tuple(MATMULS[2:])]
