"""The best model of a run, label smoothing and streams: as transformers.Trainer has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from onward.errors import OptionError
from onward.pytorch import Trainer, TrainingArguments
from onward.pytorch.trainer.arguments import read_arguments
from tests.pytorch.trainer.small_models import gpt2_rows, make_bert, make_gpt2, transformers
from tests.pytorch.trainer.test_trainer import Classifier, Recorder, rows
from tests.pytorch.trainer.test_trainer_losses import MODELS, QUIET, compare, history, settings_for

pytest.importorskip("accelerate")


def scored(values: list[float]) -> Any:
    """compute_metrics with one value after another."""
    left = list(values)
    return lambda found: {"score": left.pop(0)}


def trainer_with(folder: Path, metrics: list[float], model: Any = None, **changed: Any) -> Trainer:
    given: dict[str, Any] = {
        "output_dir": folder, "max_steps": 8, "per_device_train_batch_size": 4,
        "learning_rate": 0.05, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "score", **changed,
    }  # fmt: skip
    torch.manual_seed(0)
    return Trainer(
        model or Classifier(), TrainingArguments(**given), None, rows(), rows(7),
        compute_metrics=scored(metrics),
    )  # fmt: skip


def weights(path: Path) -> dict[str, Any]:
    return dict(torch.load(path / "pytorch_model.bin", weights_only=True))


@pytest.mark.parametrize("only_model", [False, True])
@pytest.mark.parametrize(
    "changed, best", [({}, 4), ({"greater_is_better": False}, 6)], ids=["greater", "less"]
)
def test_best_model_is_loaded_at_the_end(
    tmp_path: Path, only_model: bool, changed: dict[str, Any], best: int
) -> None:
    trainer = trainer_with(tmp_path, [0.5, 0.9, 0.1, 0.9], save_only_model=only_model, **changed)
    trainer.train()
    state = trainer.state
    assert (state.best_global_step, state.global_step) == (best, 8)
    assert state.best_metric == (0.9 if best == 4 else 0.1)
    assert state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    saved, last = weights(tmp_path / f"checkpoint-{best}"), weights(tmp_path / "checkpoint-8")
    held = trainer.model.state_dict()
    assert trainer.session is not None
    for name, tensor in saved.items():
        assert torch.equal(held[name], tensor) and not torch.equal(tensor, last[name])
        np.testing.assert_array_equal(trainer.session.parameters[name], tensor.numpy())


@pytest.mark.integration
def test_best_weights_of_a_model_of_transformers_are_read_from_its_folder(tmp_path: Path) -> None:
    def run(only_model: bool) -> Any:
        settings = settings_for(
            tmp_path / str(only_model), max_steps=4, eval_strategy="steps", eval_steps=2,
            save_strategy="steps", save_steps=2, load_best_model_at_end=True,
            metric_for_best_model="score", save_only_model=only_model,
        )  # fmt: skip
        trainer = Trainer(
            make_bert(), TrainingArguments(**settings), None, *(MODELS["bert"][1](),) * 2,
            compute_metrics=scored([0.9, 0.1]),
        )  # fmt: skip
        trainer.train()
        return trainer.model.state_dict()

    whole, only = run(False), run(True)
    assert all(torch.equal(whole[name], only[name]) for name in whole)


def test_best_checkpoint_outlives_the_limit(tmp_path: Path) -> None:
    trainer = trainer_with(tmp_path, [0.9, 0.5, 0.1, 0.2], save_total_limit=2)
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-8"]
    state = json.loads((tmp_path / "checkpoint-8/trainer_state.json").read_text())
    assert state["best_metric"] == 0.9
    assert state["best_model_checkpoint"] == str(tmp_path / "checkpoint-2")


@pytest.mark.integration
def test_limit_of_one_leaves_the_best_checkpoint_alone(tmp_path: Path) -> None:
    trainer_with(tmp_path, [0.5, 0.9, 0.1, 0.2], save_total_limit=1).train()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


@pytest.mark.integration
def test_resumed_run_keeps_its_best_model(tmp_path: Path) -> None:
    stopped = trainer_with(tmp_path, [0.9, 0.5])
    stopped._callbacks._callbacks.append(Recorder(last=4))
    stopped.train()
    resumed = trainer_with(tmp_path, [0.1, 0.2])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.best_global_step == 2
    saved = weights(tmp_path / "checkpoint-2")
    assert torch.equal(resumed.model.state_dict()["head.weight"], saved["head.weight"])


@pytest.mark.integration
def test_strategy_best_saves_what_is_better(tmp_path: Path) -> None:
    trainer_with(tmp_path, [0.5, 0.4, 0.9, 0.1], save_strategy="best").train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-6"]
    after = trainer_with(
        tmp_path / "epochs", [0.5, 0.4], save_strategy="best", eval_strategy="epoch",
        max_steps=-1, num_train_epochs=2,
    )  # fmt: skip
    after.train()
    assert [path.name for path in (tmp_path / "epochs").iterdir()] == ["checkpoint-5"]


@pytest.mark.integration
def test_early_stopping_of_transformers_reads_the_best_metric(tmp_path: Path) -> None:
    trainer = trainer_with(tmp_path, [0.5, 0.9, 0.1, 0.2])
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=1)
    trainer._callbacks._callbacks.append(stopping)
    assert trainer.train().global_step == 6 and trainer.state.best_global_step == 4


def test_defaults_of_the_metric_are_those_of_transformers() -> None:
    pairs: list[dict[str, Any]] = [
        {}, {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        {"metric_for_best_model": "eval_loss"}, {"metric_for_best_model": "accuracy"},
        {"metric_for_best_model": "accuracy", "greater_is_better": False},
        {"save_strategy": "best", "eval_strategy": "epoch", "load_best_model_at_end": True},
    ]  # fmt: skip
    for given in pairs:
        theirs = transformers.TrainingArguments("out", use_cpu=True, **given)
        for ours in (TrainingArguments(**given), read_arguments(theirs)):
            assert ours.metric_for_best_model == theirs.metric_for_best_model
            assert ours.greater_is_better == theirs.greater_is_better


def test_best_model_must_be_saved_and_evaluated(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"needs save_strategy \('steps'\) to be eval_strategy"):
        TrainingArguments(load_best_model_at_end=True)
    with pytest.raises(OptionError, match="save_strategy='best' needs metric_for_best_model"):
        TrainingArguments(save_strategy="best")
    with pytest.raises(OptionError, match=r"save_steps \(3\) to be a multiple of eval_steps \(2\)"):
        trainer_with(tmp_path, [], save_steps=3)
    shares = TrainingArguments(
        load_best_model_at_end=True, eval_strategy="steps", eval_steps=0.1, save_steps=0.3
    )
    assert shares.metric_for_best_model == "loss"
    wrong = trainer_with(tmp_path, [1.0], metric_for_best_model="scor")
    with pytest.raises(OptionError, match=r"no evaluation has 'eval_scor'.*\ndid you mean"):
        wrong.train()


@pytest.mark.slow
def test_best_model_is_that_of_transformers(tmp_path: Path) -> None:
    ours, theirs = compare(
        "bert", tmp_path, max_steps=10, eval_strategy="steps", eval_steps=2,
        save_strategy="steps", save_steps=2, load_best_model_at_end=True,
        metric_for_best_model="loss", greater_is_better=True,  # the best is not the last
    )  # fmt: skip
    assert ours.state.best_global_step == theirs.state.best_global_step < 10
    assert ours.state.best_metric == pytest.approx(theirs.state.best_metric, abs=1e-4)
    found, expected = ours.evaluate()["eval_loss"], theirs.evaluate()["eval_loss"]
    assert found == pytest.approx(expected, abs=1e-4)
    assert found == pytest.approx(ours.state.best_metric, abs=1e-5)


# -- label smoothing


@pytest.mark.integration
@pytest.mark.parametrize(
    "name, changed",
    [
        ("gpt2", {}),
        pytest.param("bert", {}, marks=pytest.mark.slow),
        pytest.param("gpt2", {"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
    ],
)
def test_smoothed_losses_are_those_of_transformers(
    tmp_path: Path, name: str, changed: dict[str, Any]
) -> None:
    settings = {"label_smoothing_factor": 0.2, "max_steps": 6, **changed}
    ours, theirs = compare(name, tmp_path, **settings)
    assert ours.evaluate()["eval_loss"] == pytest.approx(theirs.evaluate()["eval_loss"], abs=1e-5)


@pytest.mark.integration
def test_smoothed_loss_of_a_module_is_that_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Classifier()
    with torch.no_grad():
        x = torch.from_numpy(np.stack([row["x"] for row in rows(7)]))
        logits = model(x)["logits"]
    labels = torch.tensor([row["label"] for row in rows(7)])
    expected = nn.functional.cross_entropy(logits, labels, label_smoothing=0.3)
    given = TrainingArguments(output_dir=tmp_path, label_smoothing_factor=0.3)
    trainer = Trainer(model, given, None, rows(), rows(7))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert trainer.predict(rows(7)).predictions.shape == (7, 3)


def test_label_smoothing_needs_labels_of_one_class(tmp_path: Path) -> None:
    given = TrainingArguments(output_dir=tmp_path, label_smoothing_factor=0.1)
    unlabelled = [{"x": row["x"]} for row in rows()]
    with pytest.raises(OptionError, match="label_smoothing_factor needs labels"):
        Trainer(Classifier(), given, None, unlabelled).train()
    several = make_bert()
    several.config.problem_type = "multi_label_classification"
    with pytest.raises(OptionError, match="does not support multi-label"):
        Trainer(several, given, None, [])


# -- datasets without a length


class Stream(IterableDataset[Any]):
    """Rows in their order, and the epochs that were asked for."""

    def __init__(self, listed: list[Any]) -> None:
        self.listed, self.epochs = listed, list[int]()

    def set_epoch(self, number: int) -> None:
        self.epochs.append(number)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.listed)


@pytest.mark.integration
def test_stream_is_trained_as_by_transformers(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, max_steps=8)  # 22 rows: 6 batches, so it begins again
    theirs = transformers.Trainer(
        make_gpt2(), transformers.TrainingArguments(**settings, **QUIET),
        train_dataset=Stream(gpt2_rows()),
    )  # fmt: skip
    theirs.train()
    stream = Stream(gpt2_rows())
    ours = Trainer(make_gpt2(), TrainingArguments(**settings), None, stream, Stream(gpt2_rows(7)))
    assert ours.train().global_step == 8
    assert history(ours, "loss") == pytest.approx(history(theirs, "loss"), abs=1e-5)
    assert history(ours, "learning_rate") == pytest.approx(history(theirs, "learning_rate"))
    assert history(ours, "epoch")[:6] == pytest.approx(history(theirs, "epoch")[:6], abs=1e-3)
    assert stream.epochs == [0, 0, 1]  # the first shows what the model takes
    listed = Trainer(make_gpt2(), TrainingArguments(**settings), None, [], gpt2_rows(7))
    stream_loss = Trainer(make_gpt2(), None, None, [], Stream(gpt2_rows(7))).evaluate()
    assert stream_loss["eval_loss"] == pytest.approx(listed.evaluate()["eval_loss"])


@pytest.mark.integration
def test_resumed_stream_continues_in_its_epoch(tmp_path: Path) -> None:
    def make(folder: Path) -> Trainer:
        torch.manual_seed(0)
        given = TrainingArguments(
            output_dir=folder, max_steps=9, per_device_train_batch_size=4, learning_rate=0.01,
            save_steps=7,
        )  # fmt: skip
        return Trainer(Classifier(), given, None, Stream(rows()))  # 5 batches in an epoch

    whole = make(tmp_path)
    whole.train()
    resumed = make(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert resumed.state.global_step == 9
    for name, array in whole.session.parameters.items():  # type: ignore[union-attr]
        np.testing.assert_array_equal(resumed.session.parameters[name], array)  # type: ignore[union-attr]


def test_stream_needs_a_number_of_steps(tmp_path: Path) -> None:
    trainer = Trainer(Classifier(), {"output_dir": tmp_path}, None, Stream(rows()))
    with pytest.raises(OptionError, match=r"has no __len__.*\nset args\.max_steps"):
        trainer.train()
    with pytest.raises(OptionError, match=r"or a torch\.utils\.data\.IterableDataset with"):
        Trainer(Classifier(), {"max_steps": 3}, None, iter(rows())).train()
