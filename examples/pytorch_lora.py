"""Train LoRA adapters of a Hugging Face model with PEFT.

python examples/pytorch_lora.py

`onward.Module` wraps the model with its adapters: only these get gradients. They are saved as PEFT
saves them, and merged into the weights at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import peft
import torch
import transformers

import onward


def make_model() -> transformers.PreTrainedModel:
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        use_cache=False,
        loss_type="ForCausalLMLoss",
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


if __name__ == "__main__":
    transformers.set_seed(0)
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    model = onward.Module(peft.get_peft_model(make_model(), lora))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 0.02)
    tokens = torch.arange(12).expand(4, -1) + torch.arange(4)[:, None]
    for step in range(10):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        size = Path(folder, "adapter_model.safetensors").stat().st_size
    print(f"{sum(p.numel() for p in trained)} parameters trained, {size} bytes saved")
    print("merged into", type(model.merge_and_unload()).__name__)
    print("captured programs:", len(model.programs), "fallbacks:", model.fallbacks)
