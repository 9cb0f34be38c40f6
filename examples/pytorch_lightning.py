"""Train a PyTorch module with Lightning, and resume from its checkpoint.

python examples/pytorch_lightning.py

The network of the LightningModule is an `onward.Module`; nothing else changes. The names in the
checkpoint are those of the bare network.
"""

from __future__ import annotations

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import onward


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = onward.Module(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.02)


def make_loader() -> DataLoader:
    x = torch.randn(64, 8)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)


def make_trainer(epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Lightning's: few workers, an old name of torch
    lightning.seed_everything(0)
    loader = make_loader()
    trainer = make_trainer(epochs=2)
    trainer.fit(Classifier(), loader, loader)
    saved = trainer.checkpoint_callback.best_model_path
    print(f"after {trainer.global_step} steps: {trainer.callback_metrics['accuracy']:.0%} right")

    trainer = make_trainer(epochs=4)
    model = Classifier()
    trainer.fit(model, loader, loader, ckpt_path=saved)
    print(f"after {trainer.global_step} steps: {trainer.callback_metrics['accuracy']:.0%} right")
    print("captured programs:", len(model.net.programs), "fallbacks:", model.net.fallbacks)
