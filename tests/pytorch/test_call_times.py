"""provider="fastest": the engine that takes the least time, or PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402

from onward.pytorch import captured_module  # noqa: E402
from onward.pytorch.module import Module  # noqa: E402


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


@pytest.mark.parametrize(
    ("ort", "inductor", "kept"),
    [(0.5, 2.0, "onnxruntime"), (2.0, 0.5, "inductor"), (2.0, 3.0, "")],
)
def test_the_fastest_one_is_kept(
    ort: float, inductor: float, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"onnxruntime": ort, "inductor": inductor}
    monkeypatch.setattr(captured_module, "program_seconds", lambda p, *_: taken[p.engine.name])
    monkeypatch.setattr(captured_module, "torch_seconds", lambda *_: 1.0)
    model = Module(net(), {"provider": "fastest", "fallback": "forbid"})
    model(torch.ones(2, 3)).sum().backward()
    assert model[0].weight.grad is not None
    assert [program.engine.name for program in model.programs] == ([kept] if kept else [])
    slower = "PyTorch is faster: 1000.0 ms, onnxruntime 2000.0 ms, inductor 3000.0 ms"
    assert model.fallbacks == ({} if kept else {"": slower})


def test_an_engine_that_cannot_run_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def seconds(program: Any, *_: Any) -> float:
        if program.engine.name == "inductor":
            raise RuntimeError("no C++ compiler\nsecond line")
        return 0.5

    monkeypatch.setattr(captured_module, "program_seconds", seconds)
    monkeypatch.setattr(captured_module, "torch_seconds", lambda *_: 1.0)
    model = Module(net(), {"provider": "fastest"})
    model(torch.ones(2, 3))
    assert [program.engine.name for program in model.programs] == ["onnxruntime"]
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "fastest: an engine is left out: no C++ compiler"
    ]


def test_measuring_changes_nothing() -> None:
    model: Any = Module(net(), {"provider": "fastest"})
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    draw = torch.random.get_rng_state()
    captured = model._captured
    tensors = captured._contents.tensors()
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert captured_module.torch_seconds(model.module, tensors, (x,), {}) > 0
    assert torch.equal(draw, torch.random.get_rng_state())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tied_weights_are_measured() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
            self.last.weight, self.last.bias = self.first.weight, self.first.bias

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x))

    model = Module(Tied(), {"provider": "fastest"})
    model(torch.ones(2, 3)).sum().backward()
    assert model.first.weight.grad is not None
