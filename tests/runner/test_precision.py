"""Mixed precision: products in 16 bits train float32 weights nearly as float32 does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError, UnsupportedModel
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.programs.export import export_model
from onward.runner.precision import choose_precision, loss_scale_for, to_mixed_precision
from tests.runner.finetune.finetune_models import conv_net, difference, random, run

LABELS = np.arange(16) % 2
X = random(16, 3, 6, 6) + LABELS.reshape(-1, 1, 1, 1).astype(np.float32) / 2


def losses_of(
    model: ir.Model, provider: str, dtype: str | None = None, steps: int = 25
) -> tuple[list[float], Any]:
    options = onward.TrainingOptions(loss_scale=loss_scale_for(dtype))
    session = onward.TrainingSession(
        model, CrossEntropy(), AdamW(lr=0.02), options, providers=[provider]
    )
    found = [session.step({"x": X, "labels": LABELS})["loss"] for _ in range(steps)]
    return [float(each) for each in found], session


@pytest.mark.parametrize(("dtype", "provider"), [("bfloat16", "torch"), ("float16", "cpu")])
def test_training_in_16_bits_reaches_the_loss_of_float32(dtype: str, provider: str) -> None:
    model = conv_net()
    expected, _ = losses_of(model, "cpu")
    found, session = losses_of(to_mixed_precision(model, dtype), provider, dtype)
    assert found[0] == pytest.approx(expected[0], rel=0.02)
    if provider == "torch":  # onnxruntime's CPU kernels may leave the rounding out
        assert found[0] != expected[0]
    assert found[-1] < 0.2 * found[0] and abs(found[-1] - expected[-1]) < 0.02 * found[0]
    assert set(session.parameters) == set(model.graph.initializers)
    assert {array.dtype for array in session.parameters.values()} == {np.dtype("float32")}
    clean = export_model(model, dict(session.parameters))
    assert [n.op_type for n in clean.graph] == [n.op_type for n in model.graph]
    predicted = session.predict({"x": X})["y"]
    assert difference(run(clean, x=X), [np.asarray(predicted)]) < 0.1


def test_only_products_are_in_16_bits() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4, 8))
    scale = op.initializer("norm", np.ones(8, np.float32))
    h = op.MatMul(op.LayerNormalization(x, scale, axis=-1), op.initializer("w", random(8, 8)))
    model = op.model(y=op.Softmax(h, axis=-1), scores=h)
    changed = to_mixed_precision(model, "bfloat16")
    kinds = {node.op_type: node.outputs[0].dtype for node in changed.graph}
    assert kinds["MatMul"] == ir.DataType.BFLOAT16
    assert kinds["LayerNormalization"] == kinds["Softmax"] == ir.DataType.FLOAT
    assert [value.name for value in changed.graph.outputs] == ["y", "scores"]
    assert all(value.dtype == ir.DataType.FLOAT for value in changed.graph.outputs)
    assert "Cast" not in [node.op_type for node in model.graph]  # the given model is unchanged


def test_a_product_reads_another_one_without_casts_in_between() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4, 8))
    w = op.initializer("w", random(8, 8))
    h = op.Transpose(op.Reshape(op.MatMul(x, w), [0, 4, 2, 4]), perm=[0, 2, 1, 3])
    y = op.MatMul(h, op.Transpose(h, perm=[0, 1, 3, 2]))
    model = op.model(y=y)
    changed = to_mixed_precision(model, "float16")
    kinds = [node.op_type for node in changed.graph]
    assert kinds.count("Cast") == 3  # x, w and y
    assert kinds.count("Transpose") == 2
    assert difference(run(changed, x=random(2, 4, 8)), run(model, x=random(2, 4, 8))) < 0.5


def test_a_model_of_old_operators_or_without_products_is_refused() -> None:
    op = onward.OpBuilder()
    model = op.model(y=op.Relu(op.input("x", "float32", ("batch", 4))))
    with pytest.raises(OptionError, match="nothing to compute in float16"):
        to_mixed_precision(model, "float16")
    old = conv_net()
    old.opset_imports[""] = 11
    with pytest.raises(UnsupportedModel, match="opset 11, whose products have no bfloat16"):
        to_mixed_precision(old, "bfloat16")
    with pytest.raises(OptionError, match="float8"):
        to_mixed_precision(conv_net(), "float8")


@pytest.mark.parametrize(
    ("setting", "providers", "expected"),
    [
        ("none", ["torch"], None),
        ("auto", ["cpu"], None),
        ("auto", None, None),
        ("auto", "auto", None),
        ("auto", ["CUDAExecutionProvider", "cpu"], "bfloat16"),
        ("auto", [("torch", {"device": "cuda"})], "bfloat16"),
        ("auto", [("torch", {"device": "cpu"})], None),
        ("float16", None, "float16"),
        ("bfloat16", ["torch"], "bfloat16"),
    ],
)
def test_the_type_depends_on_the_provider(
    setting: str, providers: Any, expected: str | None
) -> None:
    assert choose_precision(setting, providers) == expected


def test_onnxruntime_has_no_bfloat16_on_a_cpu() -> None:
    with pytest.raises(OptionError, match=r"no products in bfloat16 on a CPU\nchoose another prov"):
        choose_precision("bfloat16", ["cpu"])
    with pytest.raises(OptionError, match="must be one of 'none', 'auto', 'bfloat16'"):
        choose_precision("flaot16", ["cpu"])
