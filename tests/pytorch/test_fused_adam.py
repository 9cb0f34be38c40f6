"""FusedAdam: its three formulas against torch's and transformers', on every kind of parameter."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.errors import OptionError
from onward.pytorch.optim.fused_adam import AdamWMode, FusedAdam

L2, TRANSFORMERS, TORCH = AdamWMode
SETTINGS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}
SIZES = [(3, 4), (5,), (), (2, 1, 3)]
TOLERANCES = {
    torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3
}  # fmt: skip


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=source).to(dtype).requires_grad_() for size in SIZES]


def set_gradients(params: list[Tensor], step: int) -> None:
    source = torch.Generator().manual_seed(step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=source, dtype=torch.float64).to(p.dtype)


def train(params: list[Tensor], optimizer: torch.optim.Optimizer, steps: int = 6) -> list[Tensor]:
    for step in range(steps):
        set_gradients(params, step)
        optimizer.step()
    return [p.detach() for p in params]


def transformers_adamw(params: list[Tensor], steps: int = 6, correct: bool = True) -> list[Tensor]:
    """The former AdamW of transformers, written as its documentation has it, in float64."""
    lr, (b1, b2), eps, wd = (SETTINGS[name] for name in ("lr", "betas", "eps", "weight_decay"))  # type: ignore[misc]
    values = [p.detach().double() for p in params]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in values]
    for step in range(steps):
        set_gradients(params, step)
        for value, p, (m, v) in zip(values, params, moments):
            grad = p.grad.double()  # type: ignore[union-attr]
            m.mul_(b1).add_(grad * (1 - b1))
            v.mul_(b2).add_(grad**2 * (1 - b2))
            size = lr * math.sqrt(1 - b2 ** (step + 1)) / (1 - b1 ** (step + 1)) if correct else lr
            value.sub_(size * m / (v.sqrt() + eps))
            value.sub_(lr * wd * value)
    return values


def expected(mode: AdamWMode, params: list[Tensor]) -> list[Tensor]:
    if mode == TRANSFORMERS:
        return transformers_adamw(params)
    peer = torch.optim.Adam if mode == L2 else torch.optim.AdamW
    return train(params, peer(params, **SETTINGS, foreach=False))  # type: ignore[arg-type]


def assert_close(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.double(), y.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("mode", AdamWMode)
def test_every_mode_has_its_formula(mode: AdamWMode, dtype: torch.dtype) -> None:
    params = parameters(dtype)
    found = train(params, FusedAdam(params, adam_w_mode=mode, **SETTINGS))  # type: ignore[arg-type]
    assert_close(found, expected(mode, parameters(dtype)), TOLERANCES[dtype])
    assert found[0].dtype == dtype


def test_bias_correction_can_be_off() -> None:
    params = parameters()
    optimizer = FusedAdam(params, bias_correction=False, **SETTINGS)  # type: ignore[arg-type]
    wanted = transformers_adamw(parameters(), correct=False)
    assert_close(train(params, optimizer), wanted, 1e-12)


def channels_last() -> Tensor:
    return torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "channels last": channels_last,
    "transposed": lambda: torch.randn(4, 3).t(),
    "every second column": lambda: torch.randn(3, 8)[:, ::2],
    "empty": lambda: torch.randn(0, 3),
}


@pytest.mark.parametrize("mode", AdamWMode)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("same", [True, False], ids=["gradient alike", "gradient contiguous"])
def test_strides_do_not_matter(layout: str, mode: AdamWMode, same: bool) -> None:
    strided = LAYOUTS[layout]()
    plain = strided.clone(memory_format=torch.contiguous_format).requires_grad_()
    strided.requires_grad_()
    first = FusedAdam([strided], adam_w_mode=mode, **SETTINGS)  # type: ignore[arg-type]
    second = FusedAdam([plain], adam_w_mode=mode, **SETTINGS)  # type: ignore[arg-type]
    for _ in range(3):
        plain.grad = torch.randn(plain.shape)
        strided.grad = torch.empty_like(strided).copy_(plain.grad) if same else plain.grad.clone()
        first.step()
        second.step()
    torch.testing.assert_close(strided.detach(), plain.detach())


def test_groups_have_settings_and_steps_of_their_own() -> None:
    params = parameters()
    optimizer = FusedAdam([{"params": params[:2], "lr": 0.5}], lr=0.1)
    set_gradients(params, 0)
    optimizer.step()
    optimizer.add_param_group({"params": params[2:], "weight_decay": 0.5})
    set_gradients(params, 1)
    optimizer.step()
    assert [(g["lr"], g["weight_decay"], g["step"]) for g in optimizer.param_groups] == [
        (0.5, 0.0, 2),
        (0.1, 0.5, 1),
    ]


def test_parameters_without_gradients_stay() -> None:
    params = parameters()
    before = params[1].detach().clone()
    optimizer = FusedAdam(params)
    set_gradients(params, 0)
    params[1].grad = None
    optimizer.step()
    assert torch.equal(params[1], before) and params[1] not in optimizer.state
    assert not torch.equal(params[0], parameters()[0])


def test_a_state_dict_continues_a_run() -> None:
    params, others = parameters(), parameters()
    optimizer = FusedAdam(params, **SETTINGS)  # type: ignore[arg-type]
    train(params, optimizer, 3)
    saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
    assert saved["state"][0].keys() == {"exp_avg", "exp_avg_sq"}
    assert saved["param_groups"][0]["step"] == 3
    for p, other in zip(params, others):
        other.data.copy_(p.data)
    resumed = FusedAdam(others)
    resumed.load_state_dict(saved)
    assert_close(train(others, resumed, 2), train(params, optimizer, 2), 0.0)


def test_a_state_of_torch_adamw_is_taken_over() -> None:
    params = parameters()
    peer = torch.optim.AdamW(params, **SETTINGS)  # type: ignore[arg-type]
    train(params, peer, 3)
    copies = [p.detach().clone().requires_grad_() for p in params]
    ours = FusedAdam(copies, adam_w_mode=TORCH)
    ours.load_state_dict(copy.deepcopy(peer.state_dict()))
    assert_close(train(copies, ours, 2), train(params, peer, 2), 1e-12)
    assert ours.param_groups[0]["step"] == 5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_an_optimizer_is_copied_with_its_mode(copied: Callable[[Any], Any]) -> None:
    params = parameters()
    optimizer = FusedAdam(params, adam_w_mode=L2, **SETTINGS)  # type: ignore[arg-type]
    train(params, optimizer, 2)
    other = copied(optimizer)
    clones = other.param_groups[0]["params"]
    assert_close(train(clones, other, 2), train(params, optimizer, 2), 0.0)


@pytest.mark.parametrize(
    ("set_grad_none", "set_to_none", "removed"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_zero_grad_removes_or_zeroes(set_grad_none: bool, set_to_none: bool, removed: bool) -> None:
    params = parameters()
    optimizer = FusedAdam(params, set_grad_none=set_grad_none)
    set_gradients(params, 0)
    optimizer.zero_grad(set_to_none=set_to_none)
    assert (params[0].grad is None) == removed
    if not removed:
        assert not params[0].grad.any()  # type: ignore[union-attr]


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = FusedAdam([weight], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2.0
    torch.testing.assert_close(weight.detach(), torch.full((2,), 0.9))


def test_schedulers_and_learning_rates_as_tensors_work() -> None:
    params = parameters()
    optimizer = FusedAdam(params, lr=torch.tensor(0.1))  # type: ignore[arg-type]
    train(params, optimizer, 1)
    optimizer = FusedAdam(params, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(params, optimizer, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_grad_scaler_skips_steps_that_overflow() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = FusedAdam([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    for factor, after in [(1.0, 0.9), (float("inf"), 0.9)]:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(weight.detach(), torch.full((2,), after))
    assert scaler.get_scale() == 2.0 and optimizer.param_groups[0]["step"] == 1


def test_devices_without_a_fused_kernel_have_the_same_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = "onward.pytorch.optim.adam_kernels._get_fused_kernels_supported_devices"
    monkeypatch.setattr(where, lambda: [])
    for mode in AdamWMode:
        params = parameters()
        found = train(params, FusedAdam(params, adam_w_mode=mode, **SETTINGS))  # type: ignore[arg-type]
        assert_close(found, expected(mode, parameters()), 1e-12)


def test_sparse_gradients_are_refused() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    law = r"does not support sparse gradients.*shape \(4, 2\)\nuse torch.optim.SparseAdam"
    with pytest.raises(RuntimeError, match=law):
        FusedAdam(table.parameters()).step()


@pytest.mark.parametrize(
    ("settings", "law"),
    [
        ({"lr": -1.0}, "FusedAdam.lr must be a number, at least 0, not -1.0"),
        ({"eps": math.nan}, "FusedAdam.eps must be"),
        ({"weight_decay": "much"}, "FusedAdam.weight_decay must be"),
        ({"betas": (0.9, 1.0)}, "FusedAdam.betas must be two numbers from 0 to below 1"),
        ({"adam_w_mode": 3}, r"must be a member of AdamWMode, not 3\ngive one of ADAM_L2_REG"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], law: str) -> None:
    with pytest.raises(OptionError, match=law):
        FusedAdam(parameters(), **settings)


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(OptionError, match=r"must be of float32, .*, not torch.complex64"):
        FusedAdam([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])
    optimizer = FusedAdam(parameters())
    with pytest.raises(OptionError, match=r"FusedAdam\.lr"):
        optimizer.add_param_group({"params": parameters(), "lr": -1.0})
    assert len(optimizer.param_groups) == 1
