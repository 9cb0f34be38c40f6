"""Fallback policies: which reasons let PyTorch run a module, and which are errors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from onward.training.ortmodule import LogLevel, ORTModule
from onward.training.ortmodule._fallback import (
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleInitException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    _FallbackManager,
    _FallbackPolicy,
)

POLICY = "ORTMODULE_FALLBACK_POLICY"


class Pair:
    def __init__(self, first: Any) -> None:
        self.first = first


class TakesPair(nn.Module):
    def forward(self, x: torch.Tensor, pair: Pair) -> torch.Tensor:
        return x + pair.first


class ReturnsPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(self.layer(x))


def manager_of(module: ORTModule) -> _FallbackManager:
    return module._torch_module._execution_manager(True)._fallback_manager


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("FALLBACK_UNSUPPORTED_DATA", ORTModuleIOError),
        ("FALLBACK_UNSUPPORTED_DEVICE", ORTModuleDeviceException),
        ("FALLBACK_UNSUPPORTED_TORCH_MODEL", ORTModuleTorchModelException),
        ("FALLBACK_UNSUPPORTED_ONNX_MODEL", ORTModuleONNXModelException),
        ("FALLBACK_FORCE_TORCH_FORWARD", ORTModuleIOError),
    ],
)
def test_a_policy_allows_its_reason(
    policy: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    manager = _FallbackManager(lambda x: x + 1, _FallbackPolicy[policy], retry=False)
    manager.handle_exception(error("because"), LogLevel.WARNING)
    manager.handle_exception(error("because"), LogLevel.WARNING)
    assert manager.is_pending() and manager.fallback(1) == 2
    assert caplog.text.count(f"Fallback to PyTorch due to exception {error.__name__}: because") == 1
    with pytest.raises(ORTModuleInitException):
        manager.handle_exception(ORTModuleInitException("other"), LogLevel.WARNING)


def test_a_retry_forgets_the_reason() -> None:
    policy = _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    manager = _FallbackManager(lambda: "ran", policy, retry=True)
    manager.handle_exception(ORTModuleIOError("a"), LogLevel.ERROR)
    assert manager.fallback() == "ran" and not manager.is_pending()


def test_objects_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)
    monkeypatch.setenv(POLICY, "FALLBACK_DISABLE")
    with pytest.raises(ORTModuleIOError, match=r"fails to extract schema .* data type: .*Pair"):
        ORTModule(TakesPair())(x, Pair(1))
    monkeypatch.setenv(POLICY, "FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_DEVICE")
    module = ORTModule(TakesPair())
    assert torch.equal(module(x, Pair(1)), x + 1) and torch.equal(module(x, Pair(2)), x + 2)
    assert isinstance(manager_of(module)._exception, ORTModuleIOError)


def test_objects_as_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "FALLBACK_DISABLE")
    module, x = ReturnsPair(), torch.ones(1, 2)
    with pytest.raises(ORTModuleIOError, match="not support the following model output type"):
        ORTModule(module)(x)
    monkeypatch.delenv(POLICY)
    wrapped = ORTModule(module)
    assert torch.equal(wrapped(x).first, module(x).first)
    assert torch.equal(wrapped(2 * x).first, module(2 * x).first)


def test_a_call_without_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Point:
        x: int
        y: int

    class Area(nn.Module):
        def forward(self, point: Point) -> int:
            return point.x * point.y

    monkeypatch.setenv(POLICY, "FALLBACK_UNSUPPORTED_DEVICE")
    with pytest.raises(ORTModuleFallbackException, match="fails to extract schema from data"):
        ORTModule(Area())(Point(2, 3))
    monkeypatch.setenv(POLICY, "FALLBACK_FORCE_TORCH_FORWARD")
    assert ORTModule(Area())(Point(2, 3)) == 6


def test_data_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.DataParallel(nn.Linear(2, 1)), torch.ones(1, 2)
    assert torch.equal(ORTModule(module)(x), module(x))
    monkeypatch.setenv(POLICY, "FALLBACK_DISABLE")
    with pytest.raises(ORTModuleTorchModelException, match="DistributedDataParallel instead"):
        ORTModule(module)
    with pytest.raises(ORTModuleTorchModelException, match="DistributedDataParallel instead"):
        ORTModule(nn.Linear(2, 1))._replicate_for_data_parallel()


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "FALLBACK_DISABLE")
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ORTModuleDeviceException, match=r"^ORTModule supports a single device per"):
        ORTModule(mixed)
    with pytest.raises(ORTModuleDeviceException, match="found on device meta, but expected it to"):
        ORTModule(nn.Linear(2, 2))(torch.ones(1, 2, device="meta"))


def test_a_custom_function_runs_in_pytorch_under_any_policy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *dy: torch.Tensor) -> torch.Tensor:
            return 3 * dy[0]

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Twice.apply(x)

    monkeypatch.setenv(POLICY, "FALLBACK_DISABLE")
    x = torch.ones(2, requires_grad=True)
    ORTModule(Net())(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((2,), 3.0))
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
