"""Trainer against transformers.Trainer: the same rows, losses, rates and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from onward.pytorch import Trainer, TrainingArguments
from tests.pytorch.trainer.small_models import (
    bert_rows,
    gpt2_rows,
    make_bert,
    make_gpt2,
    transformers,
)

pytest.importorskip("accelerate")
MODELS: dict[str, Any] = {"gpt2": (make_gpt2, gpt2_rows), "bert": (make_bert, bert_rows)}
QUIET = {"use_cpu": True, "disable_tqdm": True, "report_to": [], "dataloader_pin_memory": False}


def settings_for(folder: Path, **changed: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "max_steps": 20, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "weight_decay": 0.01, "logging_steps": 1, "save_strategy": "no",
        "warmup_steps": 3, **changed,
    }  # fmt: skip


def history(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def compare(name: str, folder: Path, **changed: Any) -> tuple[Any, Any]:
    make, rows = MODELS[name]
    settings = settings_for(folder, **changed)
    theirs = transformers.Trainer(
        make(), transformers.TrainingArguments(**settings, **QUIET), train_dataset=rows(),
        eval_dataset=rows(7),
    )  # fmt: skip
    theirs.train()
    ours = Trainer(make(), TrainingArguments(**settings), None, rows(), rows(7))
    ours.train()
    assert history(ours, "loss") == pytest.approx(history(theirs, "loss"), abs=1e-5)
    assert history(ours, "learning_rate") == pytest.approx(history(theirs, "learning_rate"))
    return ours, theirs


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gpt2", pytest.param("bert", marks=pytest.mark.slow)])
def test_losses_and_weights_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = compare(name, tmp_path)
    assert history(ours, "grad_norm") == pytest.approx(history(theirs, "grad_norm"), rel=1e-3)
    assert history(ours, "epoch") == pytest.approx(history(theirs, "epoch"), abs=1e-3)
    expected = theirs.evaluate()["eval_loss"]
    assert ours.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)
    expected = theirs.predict(MODELS[name][1](7))
    found = ours.predict(MODELS[name][1](7))
    torch.testing.assert_close(
        torch.tensor(found.predictions), torch.tensor(expected.predictions), atol=1e-3, rtol=1e-3
    )
    assert (found.label_ids == expected.label_ids).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"lr_scheduler_type": "cosine", "gradient_accumulation_steps": 2, "max_steps": 8},
        {"lr_scheduler_type": "polynomial", "dataloader_drop_last": True, "data_seed": 3},
        {"lr_scheduler_type": "constant_with_warmup", "max_grad_norm": 0.05, "seed": 7},
        {"max_steps": -1, "num_train_epochs": 1.5, "optim": "sgd", "learning_rate": 0.1},
    ],
    ids=lambda changed: ", ".join(changed),
)
def test_settings_mean_what_they_mean_to_transformers(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    compare("gpt2" if "gradient_accumulation_steps" in changed else "bert", tmp_path, **changed)
