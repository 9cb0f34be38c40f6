"""Train a Hugging Face model with onward.pytorch.Trainer: the whole step as one program.

python examples/onward_trainer.py
"""

from __future__ import annotations

import tempfile

import torch
import transformers

from onward.pytorch import Trainer, TrainingArguments


def make_model() -> transformers.PreTrainedModel:
    """A language model that is small enough for an example."""
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def make_rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that count upwards."""
    rows = [torch.arange(12) + start for start in torch.randint(20, (count,)).tolist()]
    return [{"input_ids": row, "labels": row} for row in rows]


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=3,
            per_device_train_batch_size=8,
            learning_rate=0.01,
            logging_steps=4,
            save_strategy="epoch",
            save_total_limit=1,
            use_cpu=True,
        )
        trainer = Trainer(
            make_model(), arguments, train_dataset=make_rows(32), eval_dataset=make_rows(8)
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
        trainer.save_model(f"{folder}/saved")
        loaded = transformers.GPT2LMHeadModel.from_pretrained(f"{folder}/saved")
    for entry in trainer.state.log_history:
        print({name: round(value, 4) for name, value in entry.items()})
    print(f"evaluation loss {before:.3f}, after training {after:.3f}")
    print("saved, and loaded as", type(loaded).__name__)
