"""onward compare: its result, its exit code, and the first different value."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.cli.conftest import Call, is_one_line
from tests.models import mlp


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The same model with another weight."""
    made = mlp()
    proto = ir.to_proto(made)
    for tensor in proto.graph.initializer:
        if tensor.name == "w":
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[0, 0] += 1
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    onnx.save(proto, tmp_path / "other.onnx")
    return tmp_path / "other.onnx"


@pytest.fixture
def ones(tmp_path: Path) -> Path:
    np.save(tmp_path / "ones.npy", np.ones((2, 4), np.float32))
    return tmp_path / "ones.npy"


def test_equal_models_are_exit_code_0(call: Call, model: Path) -> None:
    called = call("compare", model, model, "--seconds", "0")
    assert called.code == 0 and "the models agree" in called.out and "same" in called.out


def test_difference_is_exit_code_1_and_named(
    call: Call, model: Path, other: Path, ones: Path
) -> None:
    called = call("compare", model, other, ones, "--seconds", "0")
    assert called.code == 1 and "the models differ" in called.out
    assert (
        "first different value: 'MatMul_1' of MatMul 'node_MatMul_0' in the first model"
        in called.out
    )


def test_difference_within_the_tolerance_is_exit_code_0(
    call: Call, model: Path, other: Path, ones: Path
) -> None:
    assert call("compare", model, other, ones, "--seconds", "0", "--atol", "2").code == 0


def test_json_has_values_and_models(call: Call, model: Path, other: Path, ones: Path) -> None:
    called = call("compare", model, other, ones, "--seconds", "0", "--json", "--all")
    report = json.loads(called.out)
    assert called.code == 1 and not report["same"]
    assert report["first_difference"]["name"] == "MatMul_1"
    assert [value["name"] for value in report["values"]] == ["MatMul_1", "Add_3", "y"]
    assert report["outputs"][0]["difference"]["beyond"] == 2
    assert [facts["nodes"] for facts in report["models"]] == [3, 3]


def test_latency_is_measured_in_processes(call: Call, model: Path) -> None:
    report = json.loads(call("compare", model, model, "--seconds", "0.01", "--json").out)
    assert all(facts["median"] > 0 and facts["memory"] > 0 for facts in report["models"])


def test_models_with_other_inputs_are_one_line(call: Call, model: Path, tmp_path: Path) -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2] a, float[2] b) => (float[2] c) { c = Add(a, b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "two.onnx")
    called = call("compare", model, tmp_path / "two.onnx", "--seconds", "0")
    assert is_one_line(called, "is in only one model")
    assert is_one_line(call("compare", model, tmp_path / "none.onnx"), "no model at")
    assert is_one_line(call("compare", model), "Missing argument")


def test_cosine_and_snr_are_shown(call: Call, model: Path, other: Path, ones: Path) -> None:
    called = call("compare", model, other, ones, "--seconds", "0")
    assert "cosine" in called.out and "dB" in called.out
    report = json.loads(call("compare", model, other, ones, "--seconds", "0", "--json").out)
    [output] = report["outputs"]
    assert 0 <= output["difference"]["cosine"] <= 1 and output["difference"]["snr"] > 0


def test_several_sets_of_feeds_are_compared(
    call: Call, model: Path, other: Path, ones: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "zeros.npz", x=np.zeros((2, 4), np.float32))
    quick = ("--seconds", "0")
    called = call("compare", model, other, "--feeds", tmp_path / "zeros.npz", *quick)
    assert called.code == 0
    more = ("--feeds", tmp_path / "zeros.npz", "--feeds", f"x={ones}")
    called = call("compare", model, other, *more, *quick)
    assert called.code == 1 and "the largest differences of 2 sets of feeds" in called.out
    report = json.loads(call("compare", model, other, "--samples", "3", *quick, "--json").out)
    assert report["samples"] == 3 and report["outputs"][0]["difference"]["elements"] == 6


def test_inputs_and_outputs_can_be_paired(call: Call, model: Path, tmp_path: Path) -> None:
    renamed = onnx.load(model)
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = "u"
    renamed.graph.output[0].name = renamed.graph.node[-1].output[0] = "v"
    onnx.save(renamed, tmp_path / "renamed.onnx")
    pairs = ("--map", "x=u", "--map", "y=v")
    called = call("compare", model, tmp_path / "renamed.onnx", *pairs, "--seconds", "0")
    assert called.code == 0 and "taken for" not in called.out
    wrong = ("--map", "x=w", "--seconds", "0")
    called = call("compare", model, tmp_path / "renamed.onnx", *wrong)
    assert is_one_line(called, "no input or output 'w' to pair")
    assert is_one_line(call("compare", model, model, "--map", "x"), "--map takes NAME=OTHER")
