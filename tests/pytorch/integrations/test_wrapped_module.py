"""A wrapped module is used as the bare one: copies, files, types, modes, hooks, refusals."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import onward
from onward.errors import OptionError
from onward.pytorch.fallback import FallbackWarning
from tests.pytorch.integrations.small_nets import (
    assert_close,
    bare,
    compute_gradients,
    make_batch,
    make_net,
)


@pytest.fixture(scope="module")
def wrapped() -> onward.Module:
    module = onward.Module(make_net())
    compute_gradients(module)
    return module


def test_a_container_is_indexed_and_iterated() -> None:
    net = make_net()
    module = onward.Module(net)
    assert module[0] is net[0] and len(module) == 3 and list(module) == list(net)
    assert module[1:2][0] is net[1]
    assert onward.Module(nn.Linear(1, 1))  # no length, but true
    with pytest.raises(TypeError):
        len(onward.Module(nn.Linear(1, 1)))


@pytest.mark.integration
def test_copies_train_separately(wrapped: onward.Module) -> None:
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert type(copied) is onward.Module and copied.options == wrapped.options
        assert copied[0].weight is not wrapped[0].weight
        assert_close(compute_gradients(copied), compute_gradients(make_net()))
        with torch.no_grad():
            copied[0].weight.zero_()
        assert wrapped[0].weight.any()


def test_a_whole_module_and_its_state_are_saved(wrapped: onward.Module) -> None:
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    x, _ = make_batch()
    assert torch.equal(loaded(x), wrapped(x))
    file = io.BytesIO()
    torch.save(wrapped.state_dict(), file)
    file.seek(0)
    net = make_net(seed=5)
    net.load_state_dict(torch.load(file))
    torch.testing.assert_close(net(x), wrapped(x))
    wrapped.load_state_dict(net.state_dict())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float16", 2e-3)])
def test_types_are_converted(dtype: str, tolerance: float) -> None:
    kind = getattr(torch, dtype)
    module = onward.Module(make_net()).to(kind)
    x = make_batch()[0].to(kind)
    found = compute_gradients(module, x)
    assert not module.fallbacks
    assert {value.dtype for value in found.values() if value is not None} == {kind}
    assert_close(found, compute_gradients(make_net().to(kind), x), tolerance)


def test_half_double_and_float_change_the_wrapped_module() -> None:
    module = onward.Module(make_net())
    for convert, dtype in ((module.half, torch.float16), (module.double, torch.float64)):
        assert convert() is module and module.module[0].weight.dtype == dtype


def test_no_gradients_where_none_are_recorded(wrapped: onward.Module) -> None:
    x, _ = make_batch()
    with torch.no_grad():
        assert not wrapped(x).requires_grad
    with torch.inference_mode():
        found = wrapped(x)
    assert found.is_inference()
    torch.testing.assert_close(found, make_net()(x))
    assert wrapped(x).requires_grad


@pytest.mark.integration
def test_parameters_are_frozen_and_released_during_training() -> None:
    module, net = onward.Module(make_net()), make_net()
    for requires in (True, False, True):
        module[0].requires_grad_(requires)
        net[0].requires_grad_(requires)
        assert_close(compute_gradients(module), compute_gradients(net))
    assert len(module.programs) == 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x))


def test_a_tied_weight_gets_the_sum_of_its_gradients() -> None:
    torch.manual_seed(0)
    tied = Tied()
    module, x = onward.Module(bare(tied)), torch.tensor([[1, 2, 6]])
    assert_close(compute_gradients(module, x), compute_gradients(tied, x))
    assert len(list(module.parameters())) == 1 and module.head.weight is module.tokens.weight


def test_hooks_of_parameters_and_of_the_module_run_in_every_call() -> None:
    calls: list[str] = []
    net = make_net()
    net.register_forward_pre_hook(lambda *_: calls.append("before wrapping"))
    module = onward.Module(net)
    module.register_forward_hook(lambda *_: calls.append("forward"))
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    module[0].weight.register_hook(lambda gradient: 2 * gradient)
    module[2].bias.register_post_accumulate_grad_hook(lambda _: calls.append("gradient"))
    x = make_batch()[0].requires_grad_()
    expected = compute_gradients(make_net(), x)
    expected["0.weight"] = 2 * expected["0.weight"]  # type: ignore[operator]
    for _ in range(2):
        calls.clear()
        assert_close(compute_gradients(module, x), expected)
        assert calls[:2] == ["before wrapping", "forward"]
        assert sorted(calls[2:]) == ["backward", "gradient"]


@pytest.mark.integration
def test_a_submodule_with_hooks_runs_in_pytorch() -> None:
    inner = nn.Sequential(make_net(), nn.Linear(3, 4))
    module = onward.Module(nn.Sequential(inner, make_net(seed=2)))
    seen: list[torch.Size] = []
    handle = module[1][0].register_forward_hook(lambda _m, _i, y: seen.append(y.shape))
    x, _ = make_batch()
    with pytest.warns(FallbackWarning, match=r"'1.0' has hooks"):
        module(x)
    module(x)
    assert len(seen) == 2 and len(module.programs) == 1  # the other submodule is captured
    handle.remove()
    module(x)
    assert len(seen) == 2 and len(module.programs) == 2


def test_what_is_not_supported_is_refused_in_words(wrapped: onward.Module) -> None:
    x = make_batch()[0].requires_grad_()
    with pytest.raises(OptionError, match=r"use torch.nn.parallel.DistributedDataParallel"):
        onward.Module(nn.DataParallel(make_net()))
    with pytest.raises(OptionError, match=r"nn.DataParallel copies a module in every call"):
        wrapped._replicate_for_data_parallel()
    with pytest.raises(OptionError, match=r"does not run under torch.func"):
        torch.func.vmap(wrapped)(x)
    with pytest.raises(OptionError, match=r"no gradients of gradients\n.*module.module"):
        torch.autograd.grad(wrapped(x).sum(), x, create_graph=True)


def test_other_compilers_trace_the_wrapped_module() -> None:
    x, _ = make_batch()
    module, expected = onward.Module(make_net()), make_net()(x)
    torch.testing.assert_close(torch.compile(module, backend="eager")(x), expected)
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(x), expected)
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(module, (x,))
    torch.testing.assert_close(traced(x + 1), make_net()(x + 1))
