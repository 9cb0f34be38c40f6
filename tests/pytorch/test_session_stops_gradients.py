"""`detach`, `no_grad` and padding rows in a session of a PyTorch module: no gradient flows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onward
from onward.losses import CrossEntropy

pytestmark = pytest.mark.integration


class Gated(nn.Module):
    """A product with a value through which no gradient flows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h * self.gate(h))  # type: ignore[no-any-return]

    def gate(self, h: Tensor) -> Tensor:
        return torch.sigmoid(h).detach()


class WithoutGradient(Gated):
    def gate(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.sigmoid(h)


class Probe(Gated):
    """A layer on features that are not trained."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).detach())  # type: ignore[no-any-return]


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rows(x).sum(1) + 1)  # type: ignore[no-any-return]


X, Y = torch.linspace(-1, 1, 8).reshape(2, 4), torch.tensor([0, 1])
CASES = {
    "detach": (Gated, X),
    "no_grad": (WithoutGradient, X),
    "probe": (Probe, X),
    "padding": (Padded, torch.tensor([[0, 1], [2, 0]])),
}


def weights_of_torch(module: nn.Module, x: Tensor, steps: int) -> dict[str, Any]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(steps):
        nn.functional.cross_entropy(module(x), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loss", [CrossEntropy(), nn.CrossEntropyLoss()], ids=["ours", "torch's"])
@pytest.mark.parametrize(
    "settings", [{}, {"memory": onward.Memory(level=2)}], ids=["plain", "memory"]
)
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_weights_are_those_of_torch(name: str, loss: Any, settings: Any, provider: str) -> None:
    torch.manual_seed(0)
    make, x = CASES[name]
    module = make()
    expected = weights_of_torch(copy.deepcopy(module), x, 3)
    session = onward.TrainingSession.from_torch(
        module,
        loss,
        torch.optim.SGD(module.parameters(), lr=0.5),
        example=(x,),
        targets=(Y,) if isinstance(loss, nn.Module) else (),
        options=settings,
        providers=[provider],
    )
    feeds = dict(zip(session.input_names, (x.numpy(), Y.numpy())))
    for _ in range(3):
        session.step(feeds)
    for name, tensor in session.parameters.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_a_saved_model_keeps_them(tmp_path: Any) -> None:
    """Its nodes are identities with a mark, which a session of the file reads again."""
    torch.manual_seed(0)
    module = Gated()
    expected = weights_of_torch(copy.deepcopy(module), X, 1)
    onward.pytorch.export(module, (X,), tmp_path / "m.onnx")
    session = onward.TrainingSession(
        tmp_path / "m.onnx", CrossEntropy(), onward.optimizers.SGD(lr=0.5)
    )
    session.step(dict(zip(session.input_names, (X.numpy(), Y.numpy()))))
    for name, tensor in session.parameters.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=1e-6)
