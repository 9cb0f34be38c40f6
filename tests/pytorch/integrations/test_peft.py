"""LoRA of PEFT in a wrapped model: only adapters get gradients; saving and merging."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import onward
from tests.pytorch.integrations.small_gpt2 import make_gpt2, make_tokens
from tests.pytorch.integrations.small_nets import assert_close, bare

pytestmark = pytest.mark.integration

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


def test_only_adapters_are_trained_saved_and_merged(tmp_path: Path) -> None:
    lora = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False
    )
    plain = peft.get_peft_model(make_gpt2(), lora)
    module, tokens = onward.Module(bare(plain)), make_tokens()
    for model in (plain, module):
        model(input_ids=tokens, labels=tokens).loss.backward()
    found, expected = (
        {name: p.grad for name, p in model.named_parameters()} for model in (module, plain)
    )
    assert_close(found, expected)
    assert {name for name, each in found.items() if each is not None} == {
        name for name in found if "lora_" in name
    }
    assert not module.fallbacks
    module.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file()
    logits = module(input_ids=tokens, labels=tokens).logits
    merged = module.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=tokens).logits, logits, atol=1e-5, rtol=1e-5)
