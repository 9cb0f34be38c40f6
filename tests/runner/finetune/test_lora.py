"""Low-rank adapters: nothing changes at the start, only they train, and they merge exactly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.errors import OptionError, WeightsError
from onward.losses import MSE
from onward.optimizers import AdamW
from onward.runner.finetune.lora import Adapted, add_lora, merge_lora
from tests.runner.finetune.adapter_checks import assert_adapts, moved, with_tensors
from tests.runner.finetune.finetune_models import Array, conv_net, difference, random, run

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"alpha": 6.0},
    "dropout": {"dropout": 0.5},
    "DoRA": {"dora": True, "alpha": 1.0},
}


def trained(adapted: Adapted, feeds: dict[str, Array], steps: int = 12) -> Any:
    """A session that has trained the adapters; its loss fell."""
    options = onward.TrainingOptions(trainable=adapted.names)
    session = onward.TrainingSession(adapted.model, MSE(), AdamW(lr=0.02), options)
    losses = [float(session.step(feeds)["loss"]) for _ in range(steps)]
    assert losses[-1] < losses[0]
    assert list(session.parameters) == list(adapted.names)
    return session


@pytest.mark.parametrize("form", FORMS)
def test_adapters_train_and_merge(form: str, tmp_path: Path) -> None:
    model, x = conv_net(), random(8, 3, 6, 6)
    adapted = add_lora(model, 2, **FORMS[form])
    weights = ("conv.weight", "fc.weight", "out.weight")
    kinds = ("A", "B", "magnitude") if form == "DoRA" else ("A", "B")
    assert adapted.names == tuple(f"{w}.lora_{kind}" for w in weights for kind in kinds)
    limit = 1e-6 if form == "DoRA" else 0.0
    assert difference(run(adapted.model, x=x), run(model, x=x)) <= limit
    session = trained(adapted, {"x": x, "target": random(8, 2)})
    predicted = [session.predict({"x": x})["y"]]
    merged = merge_lora(adapted, session.parameters)
    assert difference(run(merged, x=x), predicted) < 1e-5
    assert [node.op_type for node in merged.graph] == [node.op_type for node in model.graph]
    session.export(tmp_path / "adapted.onnx")
    exported = onward.load(tmp_path / "adapted.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "adapted.onnx").run(None, {"x": x})
    assert difference(list(found), predicted) < 1e-5
    for name, value in model.graph.initializers.items():
        kept = exported.graph.initializers[name].const_value
        assert value.const_value is not None and kept is not None
        assert value.const_value.tobytes() == kept.tobytes()


def test_the_base_model_does_not_change() -> None:
    model = conv_net()
    before = ir.to_proto(model).SerializeToString()
    adapted = add_lora(model, 2)
    merge_lora(adapted, moved(adapted))
    assert ir.to_proto(model).SerializeToString() == before


def test_each_weight_has_its_own_random_numbers_of_the_seed() -> None:
    first, again, other = (add_lora(conv_net(), 2, seed=seed).tensors() for seed in (0, 0, 1))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["fc.weight.lora_A"], other["fc.weight.lora_A"])
    only = add_lora(conv_net(), 2, ["out.*"]).tensors()
    np.testing.assert_array_equal(only["out.weight.lora_A"], first["out.weight.lora_A"])


def test_a_packed_attention_is_adapted_by_its_weight() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (2, 3, 4))
    w, b = op.initializer("qkv", random(4, 12)), op.initializer("b", random(12))
    y = op.Attention(x, w, b, num_heads=2, domain="com.microsoft")
    y.type, y.shape = x.type, x.shape
    model = op.model(y=y)
    assert_adapts(model, {"x": random(2, 3, 4)})


def one_weight(dtype: Any, *, twice: bool = False) -> ir.Model:
    """A weight behind Transpose, Identity and Cast, as exporters write it."""
    op = onward.OpBuilder()
    w = op.initializer("w", random(6, 4).astype(dtype))
    x = op.input("x", "float32", ("batch", 4))
    seen = op.Cast(op.Identity(op.Transpose(w, perm=[1, 0])), to=1)
    y = op.MatMul(x, seen)
    if twice:
        back = op.MatMul(op.Tanh(y), op.Cast(w, to=1))
        y = op.Add(y, op.MatMul(back, seen))
    return op.model(y=y)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_behind_transpose_identity_and_cast(dtype: Any, twice: bool) -> None:
    adapted = assert_adapts(one_weight(dtype, twice=twice), {"x": random(3, 4)})
    [pair] = adapted.pairs
    assert pair.out_first and pair.is_branch != twice


def test_a_float16_weight_that_is_cast_is_merged_in_float32() -> None:
    assert_adapts(one_weight(np.float16), {"x": random(3, 4)})


def test_float16_models_have_float16_adapters() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", random(4, 3).astype(np.float16))
    model = op.model(y=op.MatMul(op.input("x", "float16", ("batch", 4)), w))
    adapted = add_lora(model, 2, alpha=1.0)
    assert {tensor.dtype for tensor in adapted.tensors().values()} == {np.dtype(np.float16)}
    x = random(3, 4).astype(np.float16)
    assert difference(run(adapted.model, x=x), run(model, x=x)) == 0
    expected = run(with_tensors(adapted, moved(adapted)), x=x)
    assert difference(run(merge_lora(adapted, moved(adapted)), x=x), expected) < 1e-2


@pytest.mark.parametrize("dora", [False, True])
def test_weights_that_are_reshaped(dora: bool) -> None:
    op = onward.OpBuilder()
    w = op.Reshape(op.initializer("w", random(2, 2, 7)), [4, -1])
    model = op.model(y=op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    adapted = assert_adapts(model, {"x": random(3, 4)}, dora=dora)
    assert adapted.tensors()["w.lora_A"].shape == (4, 2)


def test_a_layer_that_is_called_twice_has_one_pair() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", random(4, 4))
    h = op.Tanh(op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    adapted = assert_adapts(op.model(y=op.MatMul(h, w)), {"x": random(3, 4)})
    [pair] = adapted.pairs
    assert pair.is_branch


def test_an_embedding_that_is_also_the_last_layer_is_adapted_as_one() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", random(7, 4))
    h = op.Tanh(op.Gather(w, op.input("i", "int64", ("batch",))))
    model = op.model(y=op.MatMul(h, op.Transpose(w, perm=[1, 0])))
    adapted = assert_adapts(model, {"i": np.array([0, 6, 2])})
    [pair] = adapted.pairs
    assert not pair.is_branch


def test_old_opsets_and_transposed_data() -> None:
    op = onward.OpBuilder(opset=9)
    x = op.input("x", "float32", (4, "batch"))
    w, b = op.initializer("w", random(4, 3)), op.initializer("b", random(3))
    model = op.model(y=op.Gemm(x, w, b, transA=1, alpha=0.5, beta=2.0))
    for form in FORMS.values():
        assert_adapts(model, {"x": random(4, 5)}, **form)


def test_convolutions_keep_their_padding_and_dilation() -> None:
    for attributes in ({"auto_pad": "SAME_UPPER", "strides": [2]}, {"dilations": [2]}):
        op = onward.OpBuilder()
        w = op.initializer("w", random(5, 3, 2))
        y = op.Conv(op.input("x", "float32", ("batch", 3, 7)), w, **attributes)
        assert_adapts(op.model(y=y), {"x": random(2, 3, 7)}, alpha=3.0)


def test_dropout_is_active_only_while_training() -> None:
    adapted = add_lora(conv_net(), 2, dropout=0.5)
    tensors, x = moved(adapted), random(8, 3, 6, 6)
    options = onward.TrainingOptions(trainable=adapted.names)
    session = onward.TrainingSession(adapted.model, MSE(), AdamW(lr=0.0), options)
    session.set_parameters(tensors)
    feeds = {"x": x, "target": random(8, 2)}
    first, second = (session.step(feeds)["y"] for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    expected = run(with_tensors(adapted, tensors), x=x)
    assert difference([session.evaluate(feeds)["y"]], expected) < 1e-5


def test_weights_in_a_second_file(tmp_path: Path) -> None:
    ir.save(conv_net(), tmp_path / "model.onnx", external_data="model.data")
    assert_adapts(onward.load(tmp_path / "model.onnx"), {"x": random(2, 3, 6, 6)})


def test_weights_in_constant_nodes_and_functions() -> None:
    body = ir.Graph([x := ir.val("a")], [], nodes=[], opset_imports={"": 20}, name="layer")
    w = ir.node("Constant", [], {"value": ir.tensor(random(4, 3))})
    y = ir.node("MatMul", [x, w.outputs[0]])
    body.extend([w, y])
    body.outputs.append(y.outputs[0])
    op = onward.OpBuilder(opset=20)
    v = op.initializer("v", random(3, 3))
    h = op.node("Layer", [op.input("x", "float32", (2, 4))], {}, domain="of.mine")
    assert isinstance(h, ir.Value)
    model = op.model(y=op.MatMul(h, v))
    model.graph.outputs[0].type, model.graph.outputs[0].shape = v.type, ir.Shape((2, 3))
    function = ir.Function("of.mine", "Layer", graph=body, attributes=[])
    model.functions[function.identifier()] = function
    adapted = add_lora(model, 2)
    assert len(adapted.pairs) == 2
    x_fed = random(2, 4)
    assert difference(run(adapted.model, x=x_fed), run(model, x=x_fed)) < 1e-6


def test_other_trained_tensors_are_merged_too() -> None:
    adapted = add_lora(conv_net(), 2)
    bias = random(5, seed=5)
    merged = merge_lora(adapted, {**moved(adapted), "fc.bias": bias})
    tensor = merged.graph.initializers["fc.bias"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), bias)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "LoraSettings.rank must be a whole number, at least 1, not 0"),
        ({"rank": 2, "alpha": 0}, "LoraSettings.alpha must be a number above 0"),
        ({"rank": 2, "dropout": 1.0}, "LoraSettings.dropout must be a number from 0 to below 1"),
        ({"rank": 2, "targets": "fc.*"}, "targets must be a list of names or patterns, not one"),
        (
            {"rank": 2, "targets": ["fc.wieght"]},
            "targets: 'fc.wieght' matches no linear layer of the model\n"
            "patterns are written like 'encoder.*'; did you mean 'fc.weight'",
        ),
        (
            {"rank": 2, "dora": True, "dropout": 0.1},
            "dropout: weight 'conv.weight' cannot have it, because DoRA normalises it\n"
            "set dropout=0",
        ),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        add_lora(conv_net(), **settings)


def test_dropout_is_refused_for_a_weight_that_is_read_in_several_ways() -> None:
    with pytest.raises(OptionError, match="'w' cannot have it, because it is read in several"):
        add_lora(one_weight(np.float32, twice=True), 2, dropout=0.1)


def test_a_model_without_linear_layers_is_refused() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (1, 4, 5, 5))
    grouped = op.Conv(x, op.initializer("w", random(4, 1, 3, 3)), group=4)
    with pytest.raises(OptionError, match="layer that can be fine-tuned\nthat is a MatMul"):
        add_lora(op.model(y=grouped), 2)


def test_tensors_that_do_not_fit_are_refused() -> None:
    adapted = add_lora(conv_net(), 2)
    tensors = adapted.tensors()
    with pytest.raises(WeightsError, match=r"lack 'conv.weight.lora_A'[^\n]*\ngive all of them"):
        merge_lora(adapted, {})
    tensors["conv.weight.lora_A"] = random(1, 3, 3, 3)
    with pytest.raises(WeightsError, match=r"'conv.weight.lora_A' has shape \(1, 3, 3, 3\)"):
        merge_lora(adapted, tensors)
