"""onward inspect: its report as text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onward
from tests.cli.conftest import Call, is_one_line
from tests.models import mlp, needs, sandwich


def test_inspect_shows_inputs_operators_and_weights(call: Call, model: Path) -> None:
    called = call("inspect", model)
    assert called.code == 0
    for word in (
        "(batch, 4)",
        "MatMul",
        "ai.onnx 23; IR 10",
        "weights: 2 tensors, 9 elements, 36 B",
        "at batch=1",
        "activations at most",
    ):
        assert word in called.out
    assert "ExecutionProvider" not in called.out


def test_inspect_loads_no_engine(model: Path) -> None:
    program = (
        "import sys; from onward.cli.main import main\n"
        "try: main()\n"
        "finally: print(*{name.split('.')[0] for name in sys.modules}, 'sympy.core' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "inspect", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, last = done.stdout.splitlines()
    assert not {"torch", "openvino", "onnxruntime", "onnxscript"} & set(last.split())
    assert last.endswith("False")  # sympy, which onnx-ir imports, has not run


def test_providers_are_asked_only_on_demand(call: Call, model: Path) -> None:
    assert json.loads(call("inspect", model, "--json").out)["providers"] is None
    called = call("inspect", model, "--providers")
    assert (
        "providers of the 3 nodes of the prepared model" in called.out
        and "CPUExecutionProvider" in called.out
    )
    report = json.loads(call("inspect", model, "--provider", "reference", "--json").out)
    assert list(report["providers"]["shares"]) == ["ReferenceExecutionProvider"]


def test_cost_follows_the_sizes(call: Call, model: Path) -> None:
    one, eight = (
        json.loads(call("inspect", model, "--json", "--size", f"batch={n}").out) for n in (1, 8)
    )
    assert eight["cost"]["flops"] == 8 * one["cost"]["flops"] > 0
    assert eight["memory"]["activations"] == 8 * one["memory"]["activations"] > 0
    assert is_one_line(call("inspect", model, "--size", "bach=8"), "no dynamic dimension 'bach'")


def test_json_has_the_provider_of_each_node(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    onward.save(sandwich(), tmp_path / "s.onnx")
    report = json.loads(call("inspect", tmp_path / "s.onnx", "--providers", "--json").out)
    providers = report["providers"]
    assert providers["takes"]["CPUExecutionProvider"] == 2
    assert providers["refuses"]["CPUExecutionProvider"] == {"Pow": 1}
    assert providers["shares"] == {"CPUExecutionProvider": 2, "TorchExecutionProvider": 1}
    assert report["operators"] == {"MatMul": 2, "Pow": 1}
    assert [node["operator"] for node in report["node_list"]] == ["MatMul", "Pow", "MatMul"]


def test_reason_of_an_assignment_is_shown(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    onward.save(sandwich(), tmp_path / "s.onnx")
    called = call("inspect", tmp_path / "s.onnx", "--nodes", "--providers")
    assert "TorchExecutionProvider, because CPUExecutionProvider refuses it" in called.out
    assert "node_Pow_1" in called.out


def test_node_without_a_provider_is_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(needs("Magic", domain="nobody"))
    called = call("inspect", tmp_path / "m.onnx", "--providers")
    assert called.code == 0
    assert "nobody::Magic 'the_node': no provider" in called.out
    assert "warning: no provider of this machine runs some nodes of this model" in called.out


def test_functions_subgraphs_metadata_and_files_are_shown(call: Call, tmp_path: Path) -> None:
    branch = [helper.make_node("Twice", ["x"], ["b"], domain="mine")]
    empty = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])
    body = helper.make_graph(branch, "body", [], [empty])
    function = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    weight = onnx.numpy_helper.from_array(np.ones(600, np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("If", ["c"], ["y"], "choice", then_branch=body, else_branch=body),
            helper.make_node("Identity", ["w"], ["z"], "same"),
        ],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [600]),
        ],
        [weight],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    made = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)
    helper.set_model_props(made, {"author": "somebody"})
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="m.data", size_threshold=1024)
    called = call("inspect", path)
    assert called.code == 0, called.err
    for word in ("subgraphs: 2 in If", "mine::Twice", "somebody", "m.data (2.3 KiB)"):
        assert word in called.out, word


def test_no_weight_is_read(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = mlp()
    onward.save(made, tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    path = tmp_path / "e.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="e.data", size_threshold=0)
    size = (tmp_path / "e.data").stat().st_size
    (tmp_path / "e.data").write_bytes(b"\xff" * size)  # NaN if it were read
    report = json.loads(call("inspect", path, "--json").out)
    assert report["external_files"] == {"e.data": 36}
    assert report["weights"]["bytes"] == 36 and not report["warnings"]


def test_ort_file_is_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "m.ort").write_bytes(b"    ORTM")
    assert is_one_line(call("inspect", tmp_path / "m.ort"), "ORT format")


def test_counting_of_branches_and_loops_is_explained(call: Call, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (bool c, int64 n, float[4] x) => (float[4] z)
        { y = If(c) <then_branch = a () => (float[4] p) { p = Sigmoid(x) },
                     else_branch = b () => (float[4] q) { q = Relu(x) }>
          z = Loop(n, , y) <body = t (int64 i, bool ci, float[4] v) => (bool co, float[4] w)
                  { co = Identity(ci)
                    w = Relu(v) }> }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    cost = json.loads(call("inspect", tmp_path / "m.onnx", "--json").out)["cost"]
    assert (cost["flops"], cost["branches"], cost["loops_counted_once"]) == (20, 1, 1)
    shown = call("inspect", tmp_path / "m.onnx").out
    assert "1 If, counted with the more expensive branch" in shown
    assert "1 Loop with unknown trip count, counted once" in shown
