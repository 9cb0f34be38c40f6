"""Train a Hugging Face model with Hugging Face's Trainer.

python examples/pytorch_trainer.py

The Trainer takes an `onward.Module` in the place of the model. It finds the columns of the data in
the signature of the wrapped forward; it looks for labels in the class, so `label_names` says them.
"""

from __future__ import annotations

import tempfile

import torch
import transformers
from transformers import Trainer, TrainingArguments

import onward


def make_model() -> transformers.PreTrainedModel:
    """A language model that is small enough for an example."""
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        use_cache=False,
        tie_word_embeddings=False,  # the Trainer saves only models of its own that tie weights
        loss_type="ForCausalLMLoss",
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def make_rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that count upwards; the Trainer leaves out the column that no argument takes."""
    rows = [torch.arange(12) + start for start in torch.randint(20, (count,)).tolist()]
    return [{"input_ids": row, "labels": row, "note": "unused"} for row in rows]


if __name__ == "__main__":
    transformers.set_seed(0)
    model = onward.Module(make_model())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=3,
            per_device_train_batch_size=8,
            learning_rate=0.01,
            label_names=["labels"],
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=make_rows(32), eval_dataset=make_rows(8))
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
        trainer.save_model(f"{folder}/saved")
        model.save_pretrained(f"{folder}/pretrained")
        bare = transformers.GPT2LMHeadModel.from_pretrained(f"{folder}/pretrained")
    print(f"evaluation loss {before:.3f}, after training {after:.3f}")
    print("saved, and loaded as", type(bare).__name__)
    print("captured programs:", len(model.programs), "fallbacks:", model.fallbacks)
