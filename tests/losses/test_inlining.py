"""onward/losses/inlining.py: one model's graph behind another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch.nn.functional as F

import onward
from onward.errors import OptionError
from onward.losses.combined import Graph, Total
from tests.losses.case import STOCK, Case, check, echo, inputs_of, normal, run, with_loss

FEEDS = {"y": normal(4, 3), "wanted": normal(4, 3, seed=1)}


def squares(dtype: str = "float32", opset: int = 23) -> ir.Model:
    """The mean of scale (y - wanted)^2, with the names that echo's model has."""
    op = onward.OpBuilder(opset=opset)
    y, wanted = op.input("y", dtype, ("n4", "k")), op.input("wanted", dtype, ("n4", "k"))
    scale = op.initializer("y_in", np.array(2.0, dtype))  # the outer model has one of that name
    d = op.Sub(y, wanted)
    d.name = "y_in_2"
    return op.model(loss=op.ReduceMean(op.Mul(scale, op.Mul(d, d)), keepdims=0))


def _torch(y: Any, wanted: Any) -> Any:
    return 2 * F.mse_loss(y, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("opset", [13, 23, 26])
def test_names_and_opsets_do_not_clash(opset: int, dynamic: bool) -> None:
    case = Case("inlined", Graph(squares(opset=opset)), FEEDS, _torch)
    check(case, np.float32, 1e-5, dynamic=dynamic)


def test_one_model_can_be_inlined_twice() -> None:
    loss = Total([Graph(squares()), (Graph(squares()), 0.5)])
    case = Case("twice", loss, FEEDS, lambda y, wanted: 1.5 * _torch(y, wanted))
    check(case, np.float32, 1e-5)


def test_the_model_that_is_inlined_stays_as_it_is() -> None:
    model = squares()
    before = ir.to_proto(model).SerializeToString()
    with_loss(echo({"y": FEEDS["y"].astype(np.float32)}), Graph(model))
    assert ir.to_proto(model).SerializeToString() == before


def test_a_file_can_be_the_loss(tmp_path: Path) -> None:
    onward.save(squares(), tmp_path / "loss.onnx")
    check(Case("file", Graph(tmp_path / "loss.onnx"), FEEDS, _torch), np.float32, 1e-5)
    check(Case("str", Graph(str(tmp_path / "loss.onnx")), FEEDS, _torch), np.float32, 1e-5)


def test_a_symbolic_size_is_the_one_that_it_is_bound_to() -> None:
    """n4 of the loss is the first size of y, whatever that is called outside."""
    model = with_loss(echo({"y": normal(7, 3).astype(np.float32)}, dynamic=True), Graph(squares()))
    assert inputs_of(model)["wanted"] == ("FLOAT", ["n7", "n3"])


def test_an_unbound_size_gets_a_new_name() -> None:
    """The loss calls a size of its own n3, which is another one outside."""
    op = onward.OpBuilder()
    y, table = op.input("y", "float32", ("n", "m")), op.input("table", "float32", ("n3",))
    loss = op.Mul(op.ReduceMean(y, keepdims=0), op.ReduceMean(table, keepdims=0))
    model = with_loss(
        echo({"y": normal(4, 3).astype(np.float32)}, dynamic=True), Graph(op.model(loss=loss))
    )
    (size,) = inputs_of(model)["table"][1]
    assert size not in ("n3", "n4") and "n3" in size


def test_subgraphs_and_functions_are_inlined() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        loss (float[n, 3] y, float[n, 3] wanted) => (float value) {
            yes = Constant <value = bool {1}> ()
            d = Sub(y, wanted)
            d2 = mine.square(d)
            chosen = If (yes) <
                then_branch = t () => (float[n, 3] y_in) { y_in = Identity(d2) },
                else_branch = e () => (float[n, 3] y_in_2) { y_in_2 = Neg(d2) }
            >
            value = ReduceMean <keepdims = 0> (chosen)
        }
        <domain: "mine", opset_import: ["" : 21]>
        square (x) => (y) { y = Mul(x, x) }"""
    proto = onnx.parser.parse_model(text)
    case = Case("bodies", Graph(proto), FEEDS, lambda y, wanted: F.mse_loss(y, wanted))
    check(case, np.float32, 1e-5)
    check(case, np.float32, 1e-5, dynamic=True)


def test_an_input_with_a_default_keeps_it() -> None:
    op = onward.OpBuilder()
    y = op.input("y", "float32", (4, 3))
    scale = op.initializer("scale", np.array(3.0, np.float32))
    op.graph.inputs.append(scale)
    loss = Graph(op.model(loss=op.Mul(scale, op.ReduceMean(y, keepdims=0))))
    model = with_loss(echo({"y": FEEDS["y"].astype(np.float32)}), loss)
    assert list(inputs_of(model)) == ["y_in"]
    found = run(model, {"y_in": FEEDS["y"].astype(np.float32)}, STOCK)
    np.testing.assert_allclose(found["loss"], 3 * FEEDS["y"].mean(), rtol=1e-5)


def test_a_loss_model_may_return_its_input() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float y) => (float y) {}'
    )
    case = Case("itself", Graph(model), {"y": np.array(2.0)}, lambda y: y)
    check(case, np.float32, 1e-6)


def test_an_input_of_another_type_is_refused() -> None:
    message = (
        r"input 'y' of the model of Graph is DOUBLE of shape \[n4, k\], but the model's value of "
        r"that name is FLOAT of shape \[4, 3\]"
    )
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": FEEDS["y"].astype(np.float32)}), Graph(squares("float64")))
    with pytest.raises(OptionError, match=r"that name is FLOAT of shape \[4\]"):
        with_loss(echo({"y": normal(4).astype(np.float32)}), Graph(squares()))
    fixed = onward.OpBuilder()
    y = fixed.input("y", "float32", (5, 3))
    loss = Graph(fixed.model(loss=fixed.ReduceMean(y, keepdims=0)))
    with pytest.raises(OptionError, match=r"FLOAT of shape \[5, 3\], but .* of shape \[4, 3\]"):
        with_loss(echo({"y": FEEDS["y"].astype(np.float32)}), loss)


def test_a_model_without_outputs_is_refused() -> None:
    model = squares()
    model.graph.outputs.clear()
    with pytest.raises(OptionError, match="the model of Graph has no outputs: its first one is"):
        with_loss(echo({"y": FEEDS["y"].astype(np.float32)}), Graph(model))


def test_a_new_input_has_a_shape() -> None:
    model = squares()
    model.graph.inputs[1].shape = None
    message = "input 'wanted' of the model of Graph has no shape\ngive it one: it becomes an input"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": FEEDS["y"].astype(np.float32)}), Graph(model))
