"""Padding is left out of transformers that torch exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from onward import losses
from tests.programs.sparsity.transformers import TORCH, check_same, lengths, session

pytestmark = pytest.mark.slow

SMALL = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}


class Logits(torch.nn.Module):
    """A model of transformers whose result is its logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def export(model: Any, path: Path, *, dynamo: bool, opset: int, dynamic: bool) -> Path:
    names = ["input_ids", "attention_mask"]
    ids = torch.randint(0, 30, (3, 6))
    mask = torch.from_numpy(lengths(6, 2, 3))
    module = Logits(model).train()
    axes: dict[str, Any]
    if dynamo:
        sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}
        axes = {"dynamic_shapes": dict.fromkeys(names, sizes) if dynamic else None}
        axes |= {"optimize": False, "verbose": False}
    else:
        named = {name: {0: "batch", 1: "time"} for name in names}
        axes = {"dynamic_axes": named if dynamic else None}
        axes |= {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    torch.onnx.export(
        module,
        (ids, mask),
        path,
        input_names=names,
        output_names=["logits"],
        dynamo=dynamo,
        opset_version=opset,
        **axes,
    )
    return path


def bert(kind: str = "BertForSequenceClassification") -> Any:
    config = transformers.BertConfig(**SMALL, num_labels=3)
    return getattr(transformers, kind)(config)


def gpt2() -> Any:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    sizes = {"vocab_size": 30, "n_positions": 20, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none))


BY_TOKEN = losses.CrossEntropy(axis=-1, ignore_index=-100)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "dynamo", "opset", "dynamic", "products"),
    [
        (bert, True, 23, True, 12),
        (bert, True, 23, False, 12),
        (bert, True, 18, True, 12),
        (bert, False, 14, True, 12),
        (gpt2, True, 23, True, 5),
        (gpt2, False, 17, True, 5),
    ],
)
def test_an_export_has_the_gradients_of_all_tokens(
    make: Any, dynamo: bool, opset: int, dynamic: bool, products: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path = export(make(), tmp_path / "model.onnx", dynamo=dynamo, opset=opset, dynamic=dynamic)
    loss = BY_TOKEN if make is gpt2 else losses.CrossEntropy()
    dense, packed = (session(path, loss, s, TORCH, outputs=[]) for s in ("off", "auto"))
    assert f"{products} of them matrix products" in packed.describe_sparsity().splitlines()[-1]
    rng = np.random.default_rng(0)
    for mask in (lengths(6, 2, 3), lengths(6, 6, 6), lengths(1, 4, 2)):
        feeds = {"input_ids": rng.integers(0, 30, mask.shape), "attention_mask": mask}
        labels = np.where(mask == 1, rng.integers(0, 30, mask.shape), -100)
        feeds["labels"] = labels if make is gpt2 else rng.integers(0, 3, len(mask))
        check_same(dense, packed, feeds)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_an_export_with_dropout_trains(dynamo: bool, tmp_path: Path) -> None:
    """A legacy export computes the shapes of attention from values that dropout has changed."""
    torch.manual_seed(0)
    made = bert()
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    path = export(made, tmp_path / "model.onnx", dynamo=dynamo, opset=17 + dynamo, dynamic=True)
    packed = session(path, losses.CrossEntropy(), "auto", TORCH, outputs=[])
    mask, rng = lengths(6, 2, 3), np.random.default_rng(0)
    feeds = {"input_ids": rng.integers(0, 30, mask.shape), "attention_mask": mask}
    feeds["labels"] = rng.integers(0, 3, len(mask))
    found = [float(packed.step(feeds)["loss"]) for _ in range(3)]
    assert np.isfinite(found).all()
