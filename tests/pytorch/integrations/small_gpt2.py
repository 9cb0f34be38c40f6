"""A small GPT-2 of transformers, and tokens for it."""

from __future__ import annotations

from typing import Any

import torch


def make_gpt2(**settings: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        loss_type="ForCausalLMLoss",
        bos_token_id=0,
        eos_token_id=0,
        **settings,
    )
    return transformers.GPT2LMHeadModel(config)


def make_tokens() -> torch.Tensor:
    return torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(1))
