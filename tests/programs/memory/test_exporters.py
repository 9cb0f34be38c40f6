"""Recomputation is exact on models of several exporters, opsets and architectures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest

from onward.programs.memory.memory_options import Memory
from tests.programs.memory.test_optimize_memory import ENGINES, train

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


class Convolutions(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Residual blocks with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [(3, 8), (8, 8), (8, 8)]
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in pairs)
        self.drop, self.head = torch.nn.Dropout(0.2), torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norms[0](self.convs[0](x)))
        for conv, norm in zip(self.convs[1:], self.norms[1:]):
            x = x + torch.relu(norm(conv(x)))
        return self.head(self.drop(x.mean((2, 3))))


class Encoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    """torch's own transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x).mean(1))


def exported(module: Any, x: Any, dynamo: bool, dynamic: bool) -> Any:
    module.train()
    if dynamo:
        shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
        program = torch.onnx.export(
            module, (x,), dynamo=True, optimize=False, verbose=False, dynamic_shapes=shapes
        )
        return program.model
    file = io.BytesIO()
    axes = {"x": {0: "batch"}} if dynamic else None
    torch.onnx.export(
        *(module, (x,), file),
        dynamo=False,
        opset_version=13,
        input_names=["x"],
        dynamic_axes=axes,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
    )
    return onnx.load_from_string(file.getvalue())


CASES = [
    (Convolutions, (4, 3, 8, 8), True, True),
    (Convolutions, (4, 3, 8, 8), False, False),
    (Encoder, (4, 8, 16), True, False),
    (Encoder, (4, 8, 16), True, True),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "shape", "dynamo", "dynamic"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_exported_modules_train_the_same(
    kind: Any, shape: tuple[int, ...], dynamo: bool, dynamic: bool, engine: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    model = exported(kind(), x, dynamo, dynamic)
    name = model.graph.inputs[0].name if dynamo else "x"
    feeds = {name: x.numpy(), "labels": np.arange(4) % 5}
    expected, parameters = train(model, feeds, None, engine)
    for memory in (Memory(level=1), Memory(level=2), Memory(stash="int8", offload=True)):
        found, trained = train(model, feeds, memory, engine)
        exact = memory.stash is None
        np.testing.assert_allclose(found, expected, rtol=2e-6 if exact else 1e-2)
        for key in parameters if exact else ():
            np.testing.assert_allclose(trained[key], parameters[key], atol=2e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_lstm_of_an_old_opset_trains_the_same(engine: str) -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""
        <ir_version: 6, opset_import: ["" : 11]>
        g (float[T, B, 4] x) => (float[B, 3] y)
        <float[1, 32, 4] w, float[1, 32, 8] r, float[8, 3] v> {
            a, h, c = LSTM <hidden_size = 8> (x, w, r)
            s = Squeeze <axes = [0]> (h)
            t = Tanh(s)
            y = MatMul(t, v)
        }""")
    del model.graph.initializer[:]
    for key, shape in {"w": (1, 32, 4), "r": (1, 32, 8), "v": (8, 3)}.items():
        array = rng.normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    feeds = {"x": rng.normal(size=(5, 4, 4)).astype(np.float32), "labels": np.arange(4) % 3}
    expected, _ = train(model, feeds, None, engine)
    found, _ = train(model, feeds, Memory(level=2), engine)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
