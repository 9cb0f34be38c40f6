"""onward plan: layouts of a run, the value to paste, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onward
from onward.distributed.parallel import Parallel
from onward.graph.builder import OpBuilder
from onward.runner.architectures.new_model import new_model
from tests.cli.conftest import Call, is_one_line
from tests.distributed.training_cases import classifier


@pytest.fixture
def network(tmp_path: Path) -> Path:
    onward.save(new_model("mlp", features=64, hidden=(128, 128), classes=10), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_table_has_every_layout_and_the_value_to_paste(call: Call, network: Path) -> None:
    called = call("plan", network, "--devices", 8, "--nodes", 2)
    assert called.code == 0, called
    names = ("data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3", "hybrid ZeRO 1", "hybrid ZeRO 3")
    assert all(name in called.out for name in names)
    pasted = next(line for line in called.out.splitlines() if line.startswith("parallel"))
    assert eval(pasted.split(maxsplit=1)[1], {"Parallel": Parallel}).over(8)
    assert "256 rows of a step, at most 32 on a device" in called.out


def test_json_is_sorted_and_complete(call: Call, network: Path) -> None:
    called = call("plan", network, "--devices", 4, "--memory", "340KiB", "--batch", 64, "--json")
    found = json.loads(called.out)
    assert found["batch"] == 64 and found["parameters"] == 64 * 128 + 128 + 128 * 129 + 1290
    order = [(not each["fits"], each["missing"] or each["seconds"]) for each in found["layouts"]]
    assert order == sorted(order) and {each["fits"] for each in found["layouts"]} == {True, False}
    for each in found["layouts"]:
        parts = ("parameters", "gradients", "optimizer", "activations", "buffers")
        assert sum(each["memory"][part] for part in parts) == each["memory"]["total"]
        assert each["accumulate"] * each["rows"] == 16 and sum(each["sent"].values()) > 0


def test_state_in_16_bits_takes_half_the_memory(call: Call, network: Path) -> None:
    found = []
    for state in ("fp32", "bf16"):
        called = call("plan", network, "--devices", 2, "--state-dtype", state, "--json")
        found.append({e["name"]: e["memory"] for e in json.loads(called.out)["layouts"]})
    wide, narrow = found
    assert wide.keys() == narrow.keys()
    for name, memory in wide.items():
        assert narrow[name]["optimizer"] == memory["optimizer"] / 2
    called = call("plan", network, "--devices", 2, "--state-dtype", "bf16")
    assert "adamw, its state in bf16, fp32" in called.out


def test_nothing_fits_is_exit_code_1(call: Call, network: Path) -> None:
    called = call("plan", network, "--devices", 2, "--memory", "50KiB")
    assert called.code == 1 and "missing" in called.out and "nothing fits: " in called.out
    assert "parallel" not in [line.split(" ")[0] for line in called.out.splitlines()]


def test_one_device_agrees_with_inspect(call: Call, tmp_path: Path) -> None:
    onward.save(classifier(batch_norm=True), tmp_path / "m.onnx")
    report = json.loads(call("inspect", tmp_path / "m.onnx", "--json").out)
    found = json.loads(call("plan", tmp_path / "m.onnx", "--devices", 1, "--json").out)
    [only] = found["layouts"]
    assert only["name"] == "one device" and only["sent"] == {}
    tensors = 3 * 6 + 1
    weights = report["memory"]["weights"]
    assert weights <= only["memory"]["parameters"] < weights + 64 * tensors
    assert only["seconds"] == only["compute_seconds"]
    assert "parallel" not in call("plan", tmp_path / "m.onnx", "--devices", 1).out


@pytest.mark.integration
def test_sizes_and_precision(call: Call, tmp_path: Path) -> None:
    model = new_model("gpt2", layers=1, width=16, heads=2, vocabulary=32, context=32)
    onward.save(model, tmp_path / "m.onnx")

    def activations(*more: object) -> int:
        called = call("plan", tmp_path / "m.onnx", "--devices", 2, "--json", *more)
        return int(json.loads(called.out)["layouts"][0]["memory"]["activations"])

    assert activations("--size", "time=32") > 8 * activations()
    assert activations("--size", "time=32", "--precision", "bf16") != activations(
        "--size", "time=32"
    )


def test_a_fixed_batch_is_kept(call: Call, tmp_path: Path) -> None:
    op = OpBuilder(18)
    w = op.initializer("w", np.ones((8, 3), np.float32))
    onward.save(op.model(y=op.MatMul(op.input("x", "float32", (4, 8)), w)), tmp_path / "m.onnx")
    found = json.loads(call("plan", tmp_path / "m.onnx", "--devices", 2, "--json").out)
    assert found["batch"] == 8 and found["layouts"][0]["rows"] == 4
    called = call("plan", tmp_path / "m.onnx", "--devices", 2, "--batch", 12)
    assert is_one_line(called, "fixed batch size of 4", "multiple of 8 rows, not 12", "choose 16")


ERRORS = {
    "--memory 80Gx": ("--memory: unknown unit in '80Gx'", "80GiB or 80GB"),
    "--bandwidth fast": ("--bandwidth takes a number with a unit", "25GB/s"),
    "--intra-bandwidth 1X/s": ("--intra-bandwidth: unknown unit in '1X/s'",),
    "--flops 3Q": ("--flops: unknown unit in '3Q'",),
    "--optimizer adamx": ("optimizer cannot be 'adamx'", "did you mean 'adam'"),
    "--loss squares": ("loss cannot be 'squares'", "'mse'"),
    "--precision int8": ("there is no precision 'int8'", "bf16"),
    "--batch 2": ("a batch of 2 rows is too small for 8 devices",),
    "--nodes 3": ("8 devices cannot be spread evenly over 3 nodes",),
    "--size tim=3": ("no dynamic dimension 'tim'",),
}


@pytest.mark.parametrize("options", ERRORS)
def test_bad_input_is_one_line(call: Call, network: Path, options: str) -> None:
    called = call("plan", network, "--devices", 8, *options.split())
    assert is_one_line(called, *ERRORS[options])


def test_models_that_cannot_be_trained_are_one_line(call: Call, tmp_path: Path) -> None:
    assert is_one_line(call("plan", tmp_path / "no.onnx", "--devices", 2), "no model at")
    op = OpBuilder(18)
    labels = op.ArgMax(op.input("x", "float32", ("batch", 8)))
    onward.save(op.model(y=labels), tmp_path / "m.onnx")
    assert is_one_line(call("plan", tmp_path / "m.onnx", "--devices", 2), "no output of floats")
