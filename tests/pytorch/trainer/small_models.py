"""Small models of transformers without dropout, and rows for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")


def make_gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, loss_type="ForCausalLMLoss",
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def make_bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2_rows(count: int = 22) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(32, (count, 8), generator=generator)
    hidden = torch.arange(8) < torch.randint(4, (count, 1), generator=generator)
    labels = tokens.masked_fill(hidden, -100)  # rows have different numbers of labels
    return [
        {"input_ids": row, "labels": label, "note": "unused"} for row, label in zip(tokens, labels)
    ]


def bert_rows(count: int = 22) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(32, (count, 8), generator=generator)
    kept = torch.randint(3, 9, (count, 1), generator=generator)
    masks = (torch.arange(8) < kept).long()
    return [
        {"input_ids": row, "attention_mask": mask, "label": i % 3}
        for i, (row, mask) in enumerate(zip(tokens, masks))
    ]
