"""Gradient checkpointing inside a wrapped module: it recomputes, and keeps less."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import onward
from tests.pytorch.integrations.small_nets import (
    assert_close,
    bare,
    compute_gradients,
    make_batch,
    make_net,
)

pytestmark = pytest.mark.integration


class Blocks(nn.Module):
    """Two blocks; the calls of each are counted."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(make_net(i), nn.Linear(3, 4)) for i in range(2))
        self.reentrant = reentrant
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(self._count, block, x, use_reentrant=self.reentrant)
        return x

    def _count(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return block(x)


def saved_numbers(module: nn.Module, x: torch.Tensor) -> int:
    """How many numbers autograd keeps between the forward and the backward pass."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (sizes.append(tensor.numel()), tensor)[1], lambda tensor: tensor
    ):
        module(x)
    return sum(sizes)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not_reentrant"])
def test_blocks_are_recomputed_on_their_graphs(reentrant: bool) -> None:
    plain, checkpointed = Blocks(None), Blocks(reentrant)
    checkpointed.load_state_dict(plain.state_dict())
    x = make_batch()[0].requires_grad_()
    module = onward.Module(bare(checkpointed), {"segments": 2})
    compute_gradients(module, x)  # the first call of a block captures it inside of a checkpoint
    assert module.fallbacks == {"": "it calls torch.utils.checkpoint"}
    module.calls = 0
    assert_close(compute_gradients(module, x), compute_gradients(plain, x))
    assert module.module.calls == 4  # each block in the forward, and again in the backward
    # a reentrant checkpoint runs the first time without gradients, the second time with them
    assert len(module.programs) == (4 if reentrant else 2)
    assert saved_numbers(module, x) < saved_numbers(plain, x) / 2


def test_checkpointing_of_transformers_is_respected() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=8, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    plain = transformers.GPT2LMHeadModel(config)
    module = onward.Module(bare(plain))
    module.gradient_checkpointing_enable()
    tokens = torch.randint(11, (2, 5))
    for each in (plain, module):
        each.train()
        each(input_ids=tokens, labels=tokens).loss.backward()
    assert set(module.fallbacks) <= {"", "transformer"} and len(module.programs) >= 2
    found, expected = (
        {name: parameter.grad for name, parameter in each.named_parameters()}
        for each in (module, plain)
    )
    assert_close(found, expected)
