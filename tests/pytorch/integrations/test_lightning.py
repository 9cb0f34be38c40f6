"""A LightningModule whose network is wrapped: fit, checkpoints, resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import onward
from tests.pytorch.integrations.small_nets import make_batch, make_net

lightning = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's: few workers, names of torch


class Classifier(lightning.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def fit(model: Classifier, folder: Path, epochs: int, checkpoint: str | None = None) -> str:
    """Train, and return the path of the last checkpoint."""
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(*make_batch()), batch_size=3)
    trainer.fit(model, loader, ckpt_path=checkpoint)
    assert trainer.global_step == 2 * epochs
    return str(trainer.checkpoint_callback.best_model_path)


def test_training_and_resuming_as_the_bare_network(tmp_path: Path) -> None:
    net = onward.Module(make_net())
    saved = fit(Classifier(net), tmp_path / "wrapped", 1)
    names = torch.load(saved, weights_only=False)["state_dict"]
    assert set(names) == {f"net.{name}" for name in make_net().state_dict()}
    net.load_state_dict(make_net(seed=3).state_dict())  # the checkpoint brings them back
    fit(Classifier(net), tmp_path / "resumed", 2, saved)
    bare = Classifier(make_net())
    fit(bare, tmp_path / "bare", 2)
    for found, expected in zip(net.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not net.fallbacks
