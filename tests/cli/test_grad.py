"""onward grad and onward ops --gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import onward
from onward.gradients.coverage import differentiable
from onward.gradients.table import GRADIENTS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    op = onward.OpBuilder()
    x, w = op.input("x", "float32", (2, 3)), op.initializer("w", np.ones(3, np.float32))
    hidden = op.Mul(x, w)
    model = op.model(loss=op.ReduceSum(op.Mul(hidden, hidden), keepdims=0), y=op.Neg(hidden))
    onward.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def gradients(path: Path, names: list[str], **feeds: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(names, feeds))


def test_first_output_is_differentiated(path: Path, call: Any) -> None:
    done = call("grad", str(path), "--wrt", "x")
    assert done.code == 0, done.err
    assert "x_grad" in done.out
    (dx,) = gradients(path.with_name("m.grad.onnx"), ["x_grad"], x=X)
    np.testing.assert_allclose(dx, 2 * X)


def test_parameters_are_differentiated_and_saved(path: Path, call: Any) -> None:
    new = path.with_name("new.onnx")
    done = call("grad", str(path), "--parameters", "-o", "loss", "--save", str(new))
    assert done.code == 0, done.err
    (dw,) = gradients(new, ["w_grad"], x=X)
    np.testing.assert_allclose(dw, 2 * (X * X).sum(0))


def test_output_with_a_cotangent(path: Path, call: Any) -> None:
    done = call("grad", str(path), "--wrt", "x", "--output", "y=dy")
    assert done.code == 0, done.err
    (dx,) = gradients(path.with_name("m.grad.onnx"), ["x_grad"], x=X, dy=X)
    np.testing.assert_allclose(dx, -X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no inputs selected; give --wrt NAME"),
        (["--wrt", "z"], "the model has no value 'z'"),
        (["--wrt", "x", "-o", "y"], "only a scalar has a gradient by itself"),
        (["--wrt", "x", "-o", "y=dy", "-o", "loss"], "give every output a cotangent, or none"),
    ],
)
def test_bad_input_is_one_line(path: Path, call: Any, arguments: list[str], message: str) -> None:
    done = call("grad", str(path), *arguments)
    assert done.code == 2
    assert message in done.err


def test_gradient_table_is_printed(call: Any) -> None:
    done = call("ops", "--gradients", "--json")
    rows = {(row["domain"], row["name"]): row for row in json.loads(done.out)}
    assert rows["ai.onnx", "Sin"]["why"] == "dx = dy cos(x)"
    assert rows["ai.onnx", "Floor"]["kind"] == "none"
    assert "0 missing" in call("ops", "--gradients").out


def test_every_operator_of_the_newest_opset_has_an_entry() -> None:
    found = differentiable(GRADIENTS)
    assert [each.name for each in found if each.kind == "missing"] == []
    assert sum(each.kind == "rule" and each.domain == "ai.onnx" for each in found) >= 135
