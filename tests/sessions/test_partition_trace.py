"""A divided model's trace: its parts, and the operators of each, on one clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from tests.models import sandwich

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"


def traced(tmp_path: Path, *providers: str, runs: int = 2) -> list[dict[str, Any]]:
    prefix = str(tmp_path / "p")
    options = onward.SessionOptions(enable_profiling=True, profile_file_prefix=prefix)
    session = onward.InferenceSession(sandwich(), options, list(providers))
    for _ in range(runs):
        session.run(None, {"x": np.ones((2, 4), np.float32)})
    path = Path(session.end_profiling())
    assert list(tmp_path.iterdir()) == [path]  # the parts' own files are gone
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


@pytest.mark.parametrize("second", [TORCH, "ReferenceExecutionProvider"])
def test_the_operators_of_every_part_are_in_the_trace(tmp_path: Path, second: str) -> None:
    events = traced(tmp_path, CPU, second)
    nodes = [event["args"] for event in events if event["cat"] == "Node"]
    # by part, not by time: onnxruntime reads another clock
    ran = sorted((node["part"], node["op_name"], node["provider"]) for node in nodes)
    expected = [(0, "MatMul", CPU), (1, "Pow", second), (2, "MatMul", CPU)]
    assert ran == [each for each in expected for _ in range(2)]
    assert all({"float": [2, 4]} in n["output_type_shape"] for n in nodes if n["part"] == 1)


def test_nodes_lie_in_their_parts_and_parts_in_their_run(tmp_path: Path) -> None:
    events = traced(tmp_path, CPU, TORCH, runs=1)
    slack = 200  # microseconds: onnxruntime reads another clock

    def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
        ends = inner["ts"] + inner["dur"], outer["ts"] + outer["dur"]
        return bool(inner["ts"] >= outer["ts"] - slack and ends[0] <= ends[1] + slack)

    [run] = [event for event in events if event["name"] == "model_run"]
    parts = {event["args"]["part"]: event for event in events if event["cat"] == "Part"}
    assert len(parts) == 3 and all(inside(part, run) for part in parts.values())
    for node in (event for event in events if event["cat"] == "Node"):
        assert inside(node, parts[node["args"]["part"]])


def test_each_part_leaves_its_optimised_graph(tmp_path: Path) -> None:
    options = onward.SessionOptions(optimized_model_filepath=str(tmp_path / "o.onnx"))
    onward.InferenceSession(sandwich(), options, [CPU, TORCH])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"o.{CPU}-0.onnx",
        f"o.{CPU}-1.onnx",
        "o.onnx",
    ]
    assert [node.op_type for node in onward.load(tmp_path / "o.onnx").graph] == [
        "MatMul",
        "Pow",
        "MatMul",
    ]
