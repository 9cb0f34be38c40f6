"""onward pack and onward unpack."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onward
from tests.cli.conftest import Call, is_one_line


@pytest.fixture
def large(tmp_path: Path) -> Path:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 64))
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    onward.save(op.model(y=op.MatMul(x, op.initializer("w", w))), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_pack_run_unpack(call: Call, large: Path) -> None:
    called = call("pack", large)
    assert called.code == 0 and "1 tensors" in called.out and "m.onnxpack: " in called.out
    assert call("run", large.with_suffix(".onnxpack"), "--random").code == 0
    assert "m.onnxpack" in call("inspect", large.with_suffix(".onnxpack")).out
    other = large.parent / "other.onnx"
    called = call("unpack", large.with_suffix(".onnxpack"), "-o", other, "--verify")
    assert called.code == 0 and other.read_bytes() == large.read_bytes()


def test_pack_prints_json(call: Call, large: Path) -> None:
    found = json.loads(call("pack", large, "-o", large.parent / "p.onnxpack", "--json").out)
    assert found["tensors"] == 1 and found["after"] < found["before"]


def test_bad_input_is_one_line(call: Call, large: Path) -> None:
    assert is_one_line(call("pack", large.parent / "no.onnx"), "no model")
    assert is_one_line(call("unpack", large, "-o", "u.onnx"), "not a packed model")
    call("pack", large)
    assert is_one_line(call("pack", large), "there is a file of that name", "overwrite")
    packed = large.with_suffix(".onnxpack")
    packed.write_bytes(packed.read_bytes()[:-5])
    assert is_one_line(call("run", packed, "--random"), "damaged")
