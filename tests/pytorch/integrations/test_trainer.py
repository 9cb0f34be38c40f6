"""Hugging Face's Trainer with a wrapped model: columns, training, evaluation, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import onward
from tests.pytorch.integrations.small_gpt2 import make_gpt2, make_tokens

pytestmark = pytest.mark.integration

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def make_trainer(model: Any, folder: Path) -> Any:
    rows = [{"input_ids": row, "labels": row, "note": "unused"} for row in make_tokens()]
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        label_names=["labels"],
        save_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        dataloader_pin_memory=False,
    )
    return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)


def test_the_trainer_trains_evaluates_and_saves(tmp_path: Path) -> None:
    module = onward.Module(make_gpt2(tie_word_embeddings=False))
    trainer = make_trainer(module, tmp_path / "wrapped")
    trainer.train()
    bare = make_gpt2(tie_word_embeddings=False)
    expected = make_trainer(bare, tmp_path / "bare")
    expected.train()
    assert {"input_ids", "attention_mask", "labels"} <= set(trainer._signature_columns)
    for found, other in zip(module.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(found, other, atol=1e-4, rtol=1e-4)
    losses = [each.evaluate()["eval_loss"] for each in (trainer, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert not module.fallbacks
    assert (tmp_path / "wrapped/checkpoint-2/model.safetensors").is_file()
    module.save_pretrained(tmp_path / "pretrained")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "pretrained")
    assert torch.equal(loaded.transformer.wte.weight, module.transformer.wte.weight)
