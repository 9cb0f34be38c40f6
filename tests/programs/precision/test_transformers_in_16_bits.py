"""GPT-2 and BERT in bfloat16: losses against torch.autocast's, types of calls, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import onward
from onward.optimizers import AdamW
from onward.programs.precision.precision import Precision
from tests.programs.precision.precision_models import BF16, assert_casts_are_few

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
STEPS = 50


def make_gpt2(dropout: float = 0.0) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    ids = torch.randint(64, (4, 16))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}


def make_bert(dropout: float = 0.0) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    mask = torch.ones(4, 16, dtype=torch.int64)
    mask[1, 10:] = mask[3, 5:] = 0
    batch = {
        "input_ids": torch.randint(64, (4, 16)),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1, 0, 1]),
    }
    return transformers.BertForSequenceClassification(config).train(), batch


MAKERS = {"gpt2": make_gpt2, "bert": make_bert}


def open_session(module: Any, batch: Any, precision: Any) -> Any:
    return onward.TrainingSession.from_torch(
        module, None, AdamW(lr=1e-3, weight_decay=0.01), example=batch,
        options={"precision": precision}, providers=["torch"],
    )  # fmt: skip


def torch_losses(module: Any, batch: Any, *, autocast: bool) -> Any:
    state = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.01)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = module(**batch).loss
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    module.load_state_dict(state)
    return np.array(found)


@pytest.mark.parametrize("promote", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_losses_are_as_near_to_float32_as_autocasts(name: str, promote: bool) -> None:
    module, batch = MAKERS[name]()
    exact, theirs = (torch_losses(module, batch, autocast=on) for on in (False, True))
    session = open_session(module, batch, Precision(emulated=True, promote=promote))
    ours = np.array([float(session.step(batch)["loss"]) for _ in range(STEPS)])
    distance, allowed = np.abs(ours - exact).mean(), np.abs(theirs - exact).mean()
    assert distance <= 1.5 * allowed + 1e-4, (distance, allowed)


@pytest.mark.parametrize("name", MAKERS)
def test_attention_and_dropout_are_in_16_bits_and_norms_are_not(name: str) -> None:
    module, batch = MAKERS[name](0.1)
    session = open_session(module, batch, BF16)
    graph = session.program.neutral.train.graph
    found: dict[str, set[str]] = {}
    for node in graph:
        dtype = node.outputs[0].dtype
        found.setdefault(node.op_type, set()).add("" if dtype is None else dtype.name)
    assert found["Attention"] == found["AttentionGrad"] == found["Gelu"] == {"BFLOAT16"}
    assert found["Gemm"] == {"BFLOAT16"}
    assert found["LayerNormalization"] == found["SoftmaxCrossEntropyLoss"] == {"FLOAT"}
    assert "BFLOAT16" in found["MaskedScale"]  # of a product; of an embedding, in float32
    assert_casts_are_few(graph)
    losses = [float(session.step(batch)["loss"]) for _ in range(20)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
