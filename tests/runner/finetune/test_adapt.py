"""adapt_model: settings of fine-tuning become a model that trains and a clean exported one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import AdamW
from onward.runner.config import make_config
from onward.runner.finetune.adapt import adapt_model, default_learning_rate
from onward.runner.finetune.adapted_model import AdaptedModel
from onward.runner.finetune.adapter_files import load_adapter
from onward.runner.finetune.lora import merge_lora
from tests.runner.finetune.finetune_models import conv_net, difference, random, run

X = random(8, 3, 6, 6)


def weight_names(model: ir.Model) -> list[str]:
    return list(model.graph.initializers)


def trained(adapted: AdaptedModel, outputs: int = 2, steps: int = 8) -> onward.TrainingSession:
    options = onward.TrainingOptions(
        trainable=adapted.trainable,
        frozen=adapted.frozen,
        groups=adapted.groups,
        frozen_batch_norms=adapted.frozen_batch_norms,
    )
    session = onward.TrainingSession(adapted.model, MSE(), AdamW(lr=0.01), options)
    feeds = {"x": X, "target": random(8, outputs)}
    losses = [float(session.step(feeds)["loss"]) for _ in range(steps)]
    assert losses[-1] < losses[0]
    return session


def exported(adapted: AdaptedModel, session: onward.TrainingSession) -> ir.Model:
    return adapted.export({**session.parameters, **session.statistics})


def batch_norm_net() -> ir.Model:
    """Conv, BatchNormalization, Dropout and Gemm: x (batch, 3, 6, 6) to y (batch, 2)."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 6, 6))
    h = op.Conv(x, op.initializer("conv.weight", random(4, 3, 3, 3)))
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    values = {"weight": one, "bias": zero, "mean": zero, "var": one}
    h = op.BatchNormalization(h, *(op.initializer(f"bn.{n}", a) for n, a in values.items()))
    h = op.Dropout(op.Flatten(op.Relu(h)), op.initializer("ratio", np.array(0.1, np.float32)))
    return op.model(y=op.Gemm(h, op.initializer("fc.weight", random(2, 64) / 8), transB=1))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"freeze": ["conv.*"]},
        {"train_only": ["fc.*"]},
        {"train_only": ["fc.*", "out.weight"], "freeze": ["*.bias"]},
        {"layer_decay": 0.5},
    ],
)
def test_the_export_equals_that_of_the_session(settings: dict[str, Any], tmp_path: Path) -> None:
    adapted = adapt_model(make_config(**settings), conv_net())
    session = trained(adapted)
    session.export(tmp_path / "session.onnx")
    ours, theirs = exported(adapted, session), onward.load(tmp_path / "session.onnx")
    assert weight_names(ours) == weight_names(theirs) == weight_names(conv_net())
    assert [node.op_type for node in ours.graph] == [node.op_type for node in theirs.graph]
    assert difference(run(ours, x=X), run(theirs, x=X)) == 0


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"freeze": ["conv.*"]}, {"fc.weight", "fc.bias", "out.weight"}),
        ({"train_only": ["fc.*"]}, {"fc.weight", "fc.bias"}),
        ({"train_only": ["fc.*"], "freeze": ["*.bias"]}, {"fc.weight"}),
        ({"freeze": ["*"], "new_head": 3}, {"head.weight"}),
        ({"train_only": ["fc.bias"], "new_head": 3}, {"fc.bias", "head.weight"}),
    ],
)
def test_patterns_choose_what_is_trained(settings: dict[str, Any], names: set[str]) -> None:
    adapted = adapt_model(make_config(**settings), conv_net())
    session = trained(adapted, outputs=settings.get("new_head", 2))
    assert set(session.parameters) == names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ["cnov.*"]}, "freeze: 'cnov.*' matches no weight"),
        ({"freeze": ["fc.wieght"]}, "did you mean 'fc.weight'"),
        ({"train_only": ["fc.wieght"]}, "did you mean 'fc.weight'"),
        ({"freeze": ["*"]}, "there is nothing to train"),
        ({"freeze": ["head.weight"], "new_head": 3}, "a weight of the new head"),
        ({"lora": 2, "lora_targets": ["cv.*"]}, "'cv.*' matches no linear layer"),
        ({"lora": 2, "lora_targets": ["head.*"], "new_head": 3}, "only the new head matches"),
        ({"lora": 2, "train_only": ["fc.*"]}, "lora cannot be combined with train_only"),
        ({"lora": 2, "freeze": ["fc.*"]}, "lora cannot be combined with freeze"),
        ({"lora": 2, "quantization_aware": True}, "combined with quantization_aware"),
        ({"lora": 2, "unfreeze_every": 5}, "lora cannot be combined with unfreeze_every"),
        ({"lora": 2, "layer_decay": 0.5}, "lora cannot be combined with layer_decay"),
        ({"lora": 2, "dora": True, "lora_dropout": 0.1}, "combined with lora_dropout"),
        ({"lora_alpha": 4.0}, "lora_alpha is a setting of adapters, and lora is not set"),
        ({"keep_adapter": True}, "keep_adapter is a setting of adapters"),
        ({"quantization_aware": True}, "calibration is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        adapt_model(make_config(**settings), conv_net())
    assert message in str(error.value) and "\n" in str(error.value)


@pytest.mark.parametrize("dora", [False, True])
def test_lora_trains_adapters_and_head_and_exports_them_merged(dora: bool, tmp_path: Path) -> None:
    config = make_config(lora=2, lora_alpha=4.0, dora=dora, new_head=3, seed=1)
    adapted = adapt_model(config, conv_net())
    session = trained(adapted, outputs=3)
    assert "head.weight" in session.parameters and "conv.weight" not in session.parameters
    assert not any(name.startswith("head.weight.lora") for name in session.parameters)
    merged = exported(adapted, session)
    assert set(weight_names(merged)) == {*weight_names(conv_net()), "head.weight"} - {"out.weight"}
    expected = session.predict({"x": X})["y"]
    assert difference(run(merged, x=X), [expected]) < 1e-4
    assert adapted.save_adapter is not None
    adapted.save_adapter(tmp_path / "adapter.safetensors", dict(session.parameters))
    loaded = load_adapter(tmp_path / "adapter.safetensors", conv_net())  # without the head
    assert difference(run(merge_lora(loaded), x=X), [expected]) < 1e-4


def test_what_the_loss_does_not_read_is_not_trained() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    h = op.MatMul(x, op.initializer("w", random(4, 4)))
    pooled = op.MatMul(h, op.initializer("pool", random(4, 3)))
    model = op.model(y=h, pooled=pooled)
    for settings in ({"lora": 2}, {"layer_decay": 0.5}, {"unfreeze_every": 2}):
        adapted = adapt_model(make_config(settings), model, outputs=["y"])
        names = adapted.stages[-1].names if adapted.stages else adapted.trainable
        options = {"trainable": names, "groups": adapted.groups}
        session = onward.TrainingSession(adapted.model, MSE(output="y"), AdamW(), options)
        session.step({"x": random(2, 4), "target": random(2, 4)})
        assert not any(name.startswith("pool") for name in session.parameters)
        assert "pool" in weight_names(exported(adapted, session))
    with pytest.raises(OptionError, match="no output 'z'"):
        adapt_model(make_config(), model, outputs=["z"])


def test_batch_norms_keep_their_statistics() -> None:
    for frozen in (False, True):
        adapted = adapt_model(make_config(freeze_batch_norm=frozen), batch_norm_net())
        session = trained(adapted)
        assert len(session.statistics) == (0 if frozen else 2)
        model = exported(adapted, session)
        assert set(weight_names(model)) == {*weight_names(batch_norm_net())} - {"ratio"}
        assert "Dropout" not in [node.op_type for node in model.graph]
        assert difference(run(model, x=X), [session.predict({"x": X})["y"]]) < 1e-5
        mean = model.graph.initializers["bn.mean"].const_value
        assert mean is not None and mean.numpy().any() == (not frozen)


def test_layer_rates_are_shares_of_any_learning_rate() -> None:
    adapted = adapt_model(make_config(layer_decay=0.1), conv_net())
    assert [group.overrides["lr"] for group in adapted.groups] == pytest.approx([1e-3, 1e-4, 1e-5])
    assert [group.overrides["lr"] for group in adapted.groups_at(1.0)] == pytest.approx(
        [1.0, 0.1, 0.01]
    )
    assert default_learning_rate(make_config(learning_rate="auto", optimizer="lion")) == 1e-4


@pytest.mark.parametrize("extra", [{}, {"new_head": 3}, {"freeze": ["conv.*"]}])
def test_quantization_aware_training_exports_int8(extra: dict[str, Any]) -> None:
    config = make_config(quantization_aware=True, **extra)
    adapted = adapt_model(config, conv_net(), lambda: [{"x": X[:4]}, {"x": X[4:]}])
    session = trained(adapted, outputs=extra.get("new_head", 2))
    assert not any("scale" in name for name in session.parameters)
    model = exported(adapted, session)
    kinds = {value.dtype for value in model.graph.initializers.values()}
    assert ir.DataType.INT8 in kinds
    assert difference(run(model, x=X), [session.predict({"x": X})["y"]]) < 0.05


def test_notes_say_what_was_changed() -> None:
    config = make_config(new_head=3, freeze=["conv.*"], unfreeze_every=5, freeze_batch_norm=True)
    assert adapt_model(config, conv_net()).notes == (
        "new head: 3 outputs (head.weight)",
        "frozen: 2 weights (conv.*)",
        "unfreezing: 2 layers, one more every 5 steps",
        "BatchNormalization: 0 layers keep their statistics",
    )
