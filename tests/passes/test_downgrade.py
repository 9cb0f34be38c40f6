"""Models are lowered to older opsets that engines support."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.errors import UnsupportedModel
from onward.graph.builder import OpBuilder
from onward.passes.downgrade import fits_opset, lower_opset
from onward.passes.pipelines import PREPARE
from tests.passes.one_graph import Build, built, feeds_for
from tests.passes.running import NEWEST_IN_ORT, assert_same, run_ort, run_reference

SAID: dict[str, tuple[Build, Any]] = {
    "relu": (lambda op, x: op.Relu(x), 14),
    "cast": (lambda op, x: op.Cast(x, to=7), 13),
    "reduce": (lambda op, x: op.ReduceMean(x, [1]), 18),
    "log of a sum": (lambda op, x: op.ReduceLogSum(op.Abs(x), [1]), 18),
    "gelu": (lambda op, x: op.Gelu(x), 20),
    "softmax": (lambda op, x: op.Softmax(x), 13),
    "layer norm": (lambda op, x: op.LayerNormalization(x, np.ones(4, np.float32)), 17),
    "batch norm": (
        lambda op, x: op.BatchNormalization(x, *[np.ones(4, np.float32)] * 4),
        15,
    ),
    "range": (lambda op, x: op.Range(np.int64(0), op.Size(x), np.int64(1)), 13),
    "quantise": (lambda op, x: op.QuantizeLinear(x, np.float32(0.1), np.uint8(0)), 13),
    "one hot": (lambda op, x: op.OneHot(op.Cast(x, to=7), np.int64(3), np.float32([0, 1])), 13),
}


@pytest.mark.parametrize(("build", "opset"), list(SAID.values()), ids=list(SAID))
def test_model_is_lowered_to_the_oldest_opset_that_it_fits(build: Build, opset: int) -> None:
    model = built(build, (3, 4))
    wanted, feeds = run_reference(model, feeds_for(model)), feeds_for(model)
    new = PREPARE(model)
    assert all(fits_opset(node, new.opset_imports[""], NEWEST_IN_ORT) for node in new.graph)
    lowered = lower_opset(new.clone(), NEWEST_IN_ORT)
    assert lowered.opset_imports[""] <= max(opset, 13)
    onnx.checker.check_model(ir.to_proto(lowered), full_check=True)
    assert_same(wanted, run_ort(new, feeds))


REFUSED: dict[str, tuple[Build, str]] = {
    "new": (lambda op, x: op.SwiGLU(x, x), "SwiGLU .* it does not exist there"),
    "mode": (
        lambda op, x: op.SpaceToDepth(op.Reshape(x, [1, 3, 2, 2]), blocksize=2, mode="CRD"),
        "SpaceToDepth .* attribute mode is not at its default",
    ),
    "floats": (lambda op, x: op.Mod(x, x), "Mod .* fmod=0 of floats"),
    "types": (
        lambda op, x: op.Celu(op.Cast(x, to=10)),
        "Celu .* it does not take .*FLOAT16",
    ),
}


@pytest.mark.parametrize(("build", "message"), list(REFUSED.values()), ids=list(REFUSED))
def test_node_that_needs_a_newer_opset_is_named(build: Build, message: str) -> None:
    model = PREPARE(built(build, (3, 4), opset=28))
    assert not all(fits_opset(node, 28, NEWEST_IN_ORT) for node in model.graph)
    with pytest.raises(UnsupportedModel, match=rf"{message} \(node '.*'\)"):
        lower_opset(model, NEWEST_IN_ORT)


def test_attention_with_a_window_needs_opset_25() -> None:
    def local(op: OpBuilder, x: Any) -> Any:
        return op.Attention(x, x, x, left_window_size=2)

    def plain(op: OpBuilder, x: Any) -> Any:
        return op.Attention(x, x, x)

    shape = (1, 2, 3, 4)
    assert lower_opset(PREPARE(built(local, shape, opset=28)), 26).opset_imports[""] == 25
    assert lower_opset(PREPARE(built(plain, shape, opset=28)), 26).opset_imports[""] == 24


def test_subgraphs_are_checked() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 13, opset_import: ["": 28]>
            g (bool c, float[2] x) => (float[2] y)
            {
                y = If(c) <then_branch = a () => (float[2] r) { r = SwiGLU(x, x) },
                           else_branch = b () => (float[2] s) { s = Relu(x) }>
            }"""
        )
    )
    with pytest.raises(UnsupportedModel, match="SwiGLU"):
        lower_opset(PREPARE(model), 26)


def test_other_domains_are_ignored() -> None:
    node = ir.node("Anything", [], domain="mine")
    assert fits_opset(node, 28, 13)


def test_old_model_is_unchanged() -> None:
    model = built(lambda op, x: op.Relu(x), (2,), opset=11)
    assert lower_opset(model, NEWEST_IN_ORT).opset_imports[""] == 11
