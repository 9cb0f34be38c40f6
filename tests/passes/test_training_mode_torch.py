"""Training mode matches torch: modules are exported, put into training mode and differentiated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional

import onward
from onward.passes.fed_uniforms import left_random, take_noise
from onward.passes.pipelines import PREPARE
from onward.passes.training_mode import train_mode
from tests.passes.running import run_ort

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter's own


class Attention(nn.Module):
    """One head, with dropout on the shares and on what comes out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = (
            nn.Linear(size, 3 * size),
            nn.Linear(size, size),
            nn.LayerNorm(size),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        shares = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(x.shape[-1]), -1)
        y = functional.dropout(shares, 0.2, self.training) @ v
        return x + functional.dropout(self.out(y), 0.1, self.training)


class Twice(nn.Module):
    """One BatchNorm, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(6, momentum=0.3), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.tanh(self.linear(self.norm(x))))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)]
    layers += [nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4, momentum=0.01, eps=1e-3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))


MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5)),
        (10, 4),
    ),
    "convolutions": (convolutions, (5, 2, 8, 8)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2)), (3, 1, 4, 4, 4)),
    "attention": (lambda: nn.Sequential(Attention(8), Attention(8)), (2, 6, 8)),
    "twice": (Twice, (9, 6)),
}


@pytest.fixture(params=list(MODULES))
def exported(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor, ir.Model]:
    """A module in training, an input and the model that torch exports, with a loss."""
    make, shape = MODULES[request.param]
    torch.manual_seed(0)
    module, x = make().train(), torch.randn(shape) * 2 + 1
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(layer.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(layer.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.uniform_(layer.weight, 0.5, 2)
    program = torch.onnx.export(module, (x,), dynamo=True, optimize=False, verbose=False)
    assert program is not None
    model = program.model
    (y,) = model.graph.outputs
    square = ir.node("Mul", [y, y])
    loss = ir.node("ReduceMean", square.outputs, {"keepdims": 0})
    square.outputs[0].name, loss.outputs[0].name = "square", "loss"
    model.graph.extend([square, loss])
    model.graph.outputs[:] = list(loss.outputs)
    return module, x, PREPARE(model)


def drop_as_told(noise: np.ndarray[Any, Any]) -> Any:
    """torch's dropout, with numbers from outside."""
    left: Iterator[float] = iter(noise.tolist())

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, *_: Any) -> torch.Tensor:
        u = torch.tensor([next(left) for _ in range(x.numel())]).reshape(x.shape)
        return x * (u >= p) / (1 - p)

    return dropout


def test_gradients_and_statistics_match_torch(
    exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x, model = exported
    state = train_mode(model, unbiased=True)
    assert left_random(model) == []
    size = take_noise(model)
    noise = np.zeros(0, np.float32)
    if size is not None:
        (count,) = run_ort(size, {})
        noise = np.random.default_rng(0).random(int(count), np.float32)
    weights = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    buffers = {name: b.numpy().copy() for name, b in module.named_buffers() if name in state}
    assert len(buffers) == len(state)
    feeds = {model.graph.inputs[0].name: x.numpy(), **weights, **buffers}
    if size is not None:
        feeds["noise"] = noise
    for name in (*weights, *buffers):
        value = model.graph.initializers.pop(name)
        value.const_value = None
        model.graph.inputs.append(value)
    grown = onward.gradient(model, "loss", list(weights))
    found = dict(zip([y.name for y in grown.graph.outputs], run_ort(grown, feeds)))

    monkeypatch.setattr(functional, "dropout", drop_as_told(noise))
    loss = module(x).square().mean()
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    largest = max(float(p.grad.abs().max()) for p in module.parameters())
    for name, p in module.named_parameters():
        np.testing.assert_allclose(
            found[f"{name}_grad"], p.grad.numpy(), rtol=1e-3, atol=1e-5 * largest
        )
    now = dict(module.named_buffers())
    for name, output in state.items():
        np.testing.assert_allclose(found[output], now[name].numpy(), rtol=1e-4, atol=1e-6)


def test_torch_attention_drops_in_training_mode() -> None:
    """The exporter writes its Dropout without a mode: as if the model were not in training."""

    class Whole(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.25)

    program = torch.onnx.export(
        Whole().train(), (torch.randn(2, 3, 5, 4),), dynamo=True, optimize=False, verbose=False
    )
    assert program is not None
    model = PREPARE(program.model)
    assert take_noise(model) is None
    train_mode(model)
    size = take_noise(model)
    assert size is not None
    assert int(run_ort(size, {})[0]) == 2 * 3 * 5 * 5
