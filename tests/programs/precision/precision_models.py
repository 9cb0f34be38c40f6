"""Modules, their exports, and the losses of torch and of sessions, for tests of mixed precision."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

import onward
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.programs.precision.precision import Precision

BF16 = Precision(dtype="bf16", emulated=True)
FP16 = Precision(dtype="fp16", emulated=True)
CLASSES, STEPS, RATE = 4, 50, 3e-3


class ConvNet(nn.Module):
    """Convolutions with batch norms, a residual sum, pooling and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner, self.inner_norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.inner_norm(self.inner(x)))
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.lstm = nn.Linear(6, 8), nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(torch.tanh(self.enter(x)))[0][:, -1])  # type: ignore[no-any-return]


class Written(nn.Module):
    """Attention written out, a shared matrix, a norm: as models of before the operators have it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        h = self.norm(x)
        q, k, v = (y.view(*y.shape[:2], 2, 8).transpose(1, 2) for y in self._parts(h))
        p = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1)
        x = x + self.o((p @ v).transpose(1, 2).reshape(x.shape))
        x = x + nn.functional.gelu(x @ self.o.weight) @ self.o.weight.T
        return self.head(x.mean(1))  # type: ignore[no-any-return]

    def _parts(self, h: Tensor) -> tuple[Tensor, ...]:
        return self.q(h), self.k(h), self.v(h)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, CLASSES)
    )


INPUTS: Mapping[str, Any] = {
    "mlp": lambda rng: rng.normal(size=(16, 12)).astype(np.float32),
    "cnn": lambda rng: rng.normal(size=(8, 3, 6, 6)).astype(np.float32),
    "lstm": lambda rng: rng.normal(size=(8, 5, 6)).astype(np.float32),
    "attention": lambda rng: rng.integers(0, 32, (8, 6)),
}
MODULES: Mapping[str, Any] = {
    "mlp": mlp, "cnn": ConvNet, "lstm": Recurrent, "attention": Written,
}  # fmt: skip


def make(name: str, seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """A module in training mode, and a batch for it."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    module = MODULES[name]().train()
    x = INPUTS[name](rng)
    return module, {"x": x, "labels": np.arange(len(x)) % CLASSES}


def export(module: nn.Module, x: Any, *, dynamo: bool = False, dynamic: bool = True) -> ir.Model:
    """The module in training mode, as one of torch's exporters writes it."""
    given, file = (torch.as_tensor(x),), io.BytesIO()
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters about themselves
        if dynamo:
            shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
            written = torch.onnx.export(
                module, given, dynamo=True, dynamic_shapes=shapes, optimize=False, verbose=False,
                **names,
            )  # fmt: skip
            assert written is not None
            return ir.from_proto(written.model_proto)
        axes = {"x": {0: "batch"}} if dynamic else {}
        torch.onnx.export(
            module, given, file, dynamo=False, dynamic_axes=axes, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING, **names,
        )  # fmt: skip
    return onward.load(file.getvalue())


def torch_losses(module: nn.Module, batch: Mapping[str, Any], *, autocast: bool) -> Any:
    """The losses of torch's own training; the module keeps its weights."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=0.01)
    x, labels, found = torch.as_tensor(batch["x"]), torch.as_tensor(batch["labels"]), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    module.load_state_dict(state)
    return np.array(found)


def open_session(model: ir.Model, precision: Any, provider: str = "torch") -> Any:
    return onward.TrainingSession(
        model,
        CrossEntropy(),
        AdamW(lr=RATE, weight_decay=0.01),
        {"precision": precision, "unbiased_variance": True},
        providers=[provider],
    )


def session_losses(model: ir.Model, batch: Mapping[str, Any], precision: Any) -> Any:
    session = open_session(model, precision)
    return np.array([float(session.step(batch)["loss"]) for _ in range(STEPS)])


def casts_of(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type == "Cast"]


def assert_casts_are_few(graph: ir.Graph) -> None:
    """No value is cast twice to one type, and none is cast to 16 bits and back."""
    halves = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16)
    seen = set()
    for cast in casts_of(graph):
        [value], [result] = cast.inputs, cast.outputs
        assert value is not None
        assert (value, result.dtype) not in seen, f"{value.name} is cast twice"
        seen.add((value, result.dtype))
        floats = (ir.DataType.FLOAT, *halves)
        if result.dtype not in floats or value.dtype not in floats:
            continue
        maker = value.producer()
        if maker is not None and maker.op_type == "Cast" and maker.inputs[0] is not None:
            assert maker.inputs[0].dtype not in floats, f"{value.name} is a Cast of a Cast"
