"""Hooks of submodules: those that a trace may call, those that models of transformers collect."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from onward.pytorch.fallback import FallbackWarning
from onward.pytorch.module import Module


def pruned() -> nn.Module:
    first = nn.Linear(4, 6)
    prune.l1_unstructured(first, "weight", 0.5)
    prune.ln_structured(first, "weight", 0.2, n=2, dim=0)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(6, 2))


def normed(norm: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(norm(nn.Linear(4, 6)), nn.Tanh(), norm(nn.Linear(6, 2)))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(normed(nn.utils.spectral_norm), id="spectral_norm"),
        pytest.param(normed(nn.utils.weight_norm), id="weight_norm"),
        pytest.param(pruned, id="prune"),
    ],
)
def test_hooks_of_torch_that_compute_weights_are_captured(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    module = Module(build())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (plain, module)]
    for step in range(6):
        x = torch.randn(3 + step % 2, 4)
        for each, optimizer in zip((plain, module), optimizers):
            each.train(step not in (3, 4))
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    assert module.fallbacks == {}
    torch.testing.assert_close(module.state_dict(), plain.state_dict())
    torch.testing.assert_close(module[0].weight, plain.get_submodule("0").weight)


@pytest.mark.integration
def test_a_hook_of_the_user_runs_in_every_call() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    seen: list[int] = []
    net[0].register_forward_hook(lambda *given: seen.append(1))
    module = Module(net)
    with pytest.warns(FallbackWarning, match="its submodule '0' has hooks"):
        module(torch.ones(2, 4))
    module(torch.ones(2, 4))
    assert len(seen) == 2


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::onward.pytorch.fallback.FallbackWarning")
def test_results_of_experts_are_collected_from_a_model_that_falls_back() -> None:
    transformers = pytest.importorskip("transformers")
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
