"""Trainer: checkpoints, resuming, evaluation, callbacks, modules of torch, and refusals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onward
from onward.errors import CheckpointMissing, OptionError, ProviderError
from onward.pytorch import Trainer, TrainingArguments
from onward.pytorch.trainer.arguments import read_arguments

transformers = pytest.importorskip("transformers")


class Classifier(nn.Module):
    """A module that returns its loss when it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(torch.tanh(self.norm(self.hidden(x))))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = 20) -> list[dict[str, Any]]:
    x = np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)
    return [{"x": row, "label": i % 3, "id": f"row {i}"} for i, row in enumerate(x)]


def arguments(folder: Path, **changed: Any) -> TrainingArguments:
    given: dict[str, Any] = {
        "output_dir": folder, "max_steps": 12, "per_device_train_batch_size": 4,
        "learning_rate": 0.01, "logging_steps": 4, "save_strategy": "no", **changed,
    }  # fmt: skip
    return TrainingArguments(**given)


def make(folder: Path, **changed: Any) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Classifier(), arguments(folder, **changed), None, rows(), rows(7))


class Recorder:
    """Remembers events, and stops the run at a step."""

    def __init__(self, last: int = 1000) -> None:
        self.last, self.events = last, list[str]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.events.append("begin")

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step >= self.last

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.events.append("loss" if "loss" in logs else "other")


@pytest.mark.integration
def test_a_module_of_torch_is_trained_evaluated_and_saved(tmp_path: Path) -> None:
    def accuracy(found: Any) -> dict[str, float]:
        logits, labels = found
        return {"accuracy": float((logits.argmax(-1) == labels).mean())}

    trainer = make(tmp_path, eval_strategy="steps", eval_steps=6)
    trainer.compute_metrics = accuracy
    output = trainer.train()
    assert output.global_step == 12 and np.isfinite(output.training_loss)
    history = trainer.state.log_history
    assert [entry["step"] for entry in history if "loss" in entry] == [4, 8, 12]
    assert [entry["step"] for entry in history if "eval_accuracy" in entry] == [6, 12]
    found = trainer.evaluate()
    assert found["eval_loss"] == history[-1].get("eval_loss", found["eval_loss"])
    predicted = trainer.predict(rows(7))
    assert predicted.predictions.shape == (7, 3) and predicted.label_ids.shape == (7,)
    with torch.no_grad():
        x = torch.from_numpy(np.stack([row["x"] for row in rows(7)]))
        logits = trainer.model.eval()(x)["logits"]
    np.testing.assert_allclose(predicted.predictions, logits.numpy(), atol=1e-5)
    trainer.save_model(tmp_path / "model")
    state = torch.load(tmp_path / "model/pytorch_model.bin")
    assert torch.equal(state["head.weight"], trainer.model.head.weight)


@pytest.mark.integration
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2}
    whole = make(tmp_path / "whole", **saves)
    whole.train()
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == ["checkpoint-12", "checkpoint-8"]
    stopped = make(tmp_path / "part", **saves)
    stopped._callbacks._callbacks.append(Recorder(last=8))
    stopped.train()
    resumed = make(tmp_path / "part", **saves)
    with torch.no_grad():
        resumed.model.head.weight.zero_()  # the checkpoint's are read
    output = resumed.train(resume_from_checkpoint=True)
    assert output.global_step == 12
    for name, array in whole.session.parameters.items():
        np.testing.assert_array_equal(resumed.session.parameters[name], array)
    assert [e["step"] for e in resumed.state.log_history if "loss" in e] == [4, 8, 12]


def test_callbacks_are_called_and_may_stop_the_run(tmp_path: Path) -> None:
    recorder = Recorder(last=5)
    trainer = Trainer(
        Classifier(), arguments(tmp_path), None, rows(), callbacks=[recorder],
    )  # fmt: skip
    assert trainer.train().global_step == 5
    assert recorder.events == ["begin", "loss", "other"]


@pytest.mark.integration
def test_a_callback_may_ask_for_a_checkpoint_after_an_evaluation(tmp_path: Path) -> None:
    class Saves:
        def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_save = True

    trainer = make(tmp_path, eval_strategy="steps", eval_steps=6)
    trainer._callbacks._callbacks.append(Saves())
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-12", "checkpoint-6"]


@pytest.mark.integration
def test_batches_that_are_left_at_the_end_of_an_epoch_make_an_update(tmp_path: Path) -> None:
    trainer = make(tmp_path, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2)
    assert trainer.train().global_step == 6  # 5 batches of 4 rows: 3 updates in each epoch
    assert trainer.session is not None and trainer.session.steps == 6


@pytest.mark.integration
def test_the_loss_of_a_skipped_update_does_not_count(tmp_path: Path) -> None:
    trainer = make(tmp_path, logging_steps=1, max_steps=5)
    trainer.train_dataset[2]["x"][0] = np.nan
    result = trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.isnan(losses).sum() == 1
    assert result.training_loss == pytest.approx(np.nanmean(losses), rel=1e-6)
    assert result.metrics["train_loss"] == result.training_loss
    for row in trainer.train_dataset:
        row["x"][:] = np.nan
    assert np.isnan(trainer.train().training_loss)


def test_bf16_is_mixed_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.providers.low_precision.processor_flags", frozenset)
    with pytest.raises(ProviderError, match="no instructions for bfloat16"):
        make(tmp_path, bf16=True, use_cpu=True).train()
    precision = onward.Precision(emulated=True)
    trainer = Trainer(
        Classifier(), arguments(tmp_path, use_cpu=True), None, rows(),
        options={"precision": precision},
    )  # fmt: skip
    assert trainer.train().global_step == 12
    assert trainer.session is not None
    assert trainer.session.program.settings.precision == "bfloat16"
    assert arguments(tmp_path, fp16=True).precision == "fp16"


def test_arguments_of_transformers_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("accelerate")
    given = transformers.TrainingArguments(
        str(tmp_path), max_steps=5, learning_rate=0.1, lr_scheduler_type="cosine", use_cpu=True,
        eval_strategy="epoch", disable_tqdm=True,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "onward"):
        found = read_arguments(given)
    assert (found.max_steps, found.learning_rate, found.seed) == (5, 0.1, 42)
    assert (found.lr_scheduler_type, found.eval_strategy) == ("cosine", "epoch")
    assert "these settings have no effect: disable_tqdm" in caplog.text
    for name, value in (("gradient_checkpointing", True), ("neftune_noise_alpha", 5.0)):
        other = transformers.TrainingArguments(str(tmp_path), use_cpu=True, **{name: value})
        with pytest.raises(OptionError, match=f"args.{name} is .*\n(.|\n)*onward.Module"):
            read_arguments(other)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bf16": True, "fp16": True}, "both bf16 and fp16"),
        ({"eval_strategy": "sometimes"}, "eval_strategy must be one of"),
        ({"learning_rat": 0.1}, "no setting 'learning_rat'"),
    ],
)
def test_wrong_arguments_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises((OptionError, TypeError), match=words):
        TrainingArguments(**changed)


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"args\.optim is 'lion'"):
        make(tmp_path, optim="lion").train()
    with pytest.raises(OptionError, match="lr_scheduler_type is 'inverse_sqrt'"):
        make(tmp_path, lr_scheduler_type="inverse_sqrt").train()
    with pytest.raises(OptionError, match="has no train_dataset"):
        Trainer(Classifier(), arguments(tmp_path)).train()
    with pytest.raises(OptionError, match="train_dataset has fewer rows than one batch"):
        Trainer(Classifier(), arguments(tmp_path, dataloader_drop_last=True), None, rows(3)).train()
    with pytest.raises(OptionError, match="schedule of torch"):
        Trainer(Classifier(), arguments(tmp_path), optimizers=(None, object()))
    with pytest.raises(OptionError, match=r"options\.clip_norm is decided by"):
        Trainer(Classifier(), arguments(tmp_path), options={"clip_norm": 1.0})
    with pytest.raises(OptionError, match=r"takes a torch\.nn\.Module"):
        Trainer("model.onnx")  # type: ignore[arg-type]
    with pytest.raises(CheckpointMissing, match="has no checkpoint"):
        make(tmp_path / "empty").train(resume_from_checkpoint=True)
