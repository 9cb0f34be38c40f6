"""Results of submodules that models of transformers collect while they run in PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch

from onward.pytorch.module import Module

transformers = pytest.importorskip("transformers")


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::onward.pytorch.fallback.FallbackWarning")
def test_results_of_experts_are_collected_from_a_model_that_falls_back() -> None:
    config = transformers.MixtralConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=8, num_local_experts=2, use_cache=False,
        output_router_logits=True,
    )  # fmt: skip
    torch.manual_seed(0)
    plain = transformers.MixtralForCausalLM(config).train()
    module, tokens = Module(copy.deepcopy(plain)), torch.randint(11, (2, 5))
    for _ in range(2):
        found, expected = (each(input_ids=tokens, labels=tokens) for each in (module, plain))
        torch.testing.assert_close(found.router_logits, expected.router_logits)
        found.loss.backward()
        expected.loss.backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad)
