"""The models that benchmarks measure: built in code, or real ones from pip packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import onward

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "real"))
import catalog

Feeds = dict[str, Any]
Built = tuple[ir.Model, Feeds]


class Weights:
    """Random weights under fresh names."""

    def __init__(self, op: onward.OpBuilder) -> None:
        self._op, self._rng, self._count = op, np.random.default_rng(0), 0

    def __call__(self, *shape: int, fan_in: int | None = None) -> Any:
        spread = 1 / np.sqrt(fan_in or shape[0])
        return self._add(self._rng.normal(0, spread, shape))

    def full(self, number: float, *shape: int) -> Any:
        return self._add(np.full(shape, number))

    def _add(self, array: Any) -> Any:
        self._count += 1
        return self._op.initializer(f"w{self._count}", array.astype(np.float32))


def random(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def add() -> Built:
    """One Add of four numbers: measures the call itself."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    return op.model(y=op.Add(x, x)), {"x": np.ones((1, 4), np.float32)}


def many_inputs() -> Built:
    """Twelve inputs, twelve outputs: measures the cost of names."""
    op = onward.OpBuilder()
    inputs = [op.input(f"x{i}", "float32", (4,)) for i in range(12)]
    outputs = {f"y{i}": op.Neg(x) for i, x in enumerate(inputs)}
    return op.model(**outputs), {x.name: np.ones(4, np.float32) for x in inputs}


def mlp(batch: int) -> Built:
    """784-256-256-10."""
    op = onward.OpBuilder()
    w = Weights(op)
    y = op.input("x", "float32", (batch, 784))
    for layer, (rows, columns) in enumerate([(784, 256), (256, 256), (256, 10)]):
        y = op.Gemm(y, w(rows, columns), w.full(0, columns))
        y = op.Relu(y) if layer < 2 else y
    return op.model(y=y), {"x": random(batch, 784)}


def _normalized(op: Any, w: Weights, y: Any, channels: int) -> Any:
    terms = [w.full(number, channels) for number in (1.1, 0.1, 0.05, 0.9)]
    return op.BatchNormalization(y, *terms)


def cnn(batch: int) -> Built:
    """Three convolutions with BatchNormalization on 32 x 32 images."""
    op = onward.OpBuilder()
    w = Weights(op)
    y = op.input("x", "float32", (batch, 3, 32, 32))
    for inputs, outputs, stride in [(3, 32, 1), (32, 64, 2), (64, 128, 2)]:
        kernel = w(outputs, inputs, 3, 3, fan_in=9 * inputs)
        y = op.Conv(y, kernel, pads=[1] * 4, strides=[stride] * 2)
        y = op.Relu(_normalized(op, w, y, outputs))
    y = op.Gemm(op.Flatten(op.GlobalAveragePool(y)), w(128, 10), w.full(0, 10))
    return op.model(y=y), {"x": random(batch, 3, 32, 32)}


def mobilenet(size: int) -> Built:
    """Inverted residuals as in MobileNetV2: expand, depthwise, project, BatchNormalization kept."""
    op = onward.OpBuilder()
    w = Weights(op)

    def conv(y: Any, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> Any:
        each = inputs // groups
        weight = w(outputs, each, kernel, kernel, fan_in=each * kernel * kernel)
        pads, strides = [kernel // 2] * 4, [stride] * 2
        y = op.Conv(y, weight, pads=pads, strides=strides, group=groups)
        return _normalized(op, w, y, outputs)

    def clip(y: Any) -> Any:
        return op.Clip(y, np.float32(0), np.float32(6))

    y = op.input("x", "float32", (1, 3, size, size))
    y = clip(conv(y, 3, 32, 3, 2))
    channels = 32
    for outputs, stride, repeats in [(16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 3), (96, 1, 2)]:
        for repeat in range(repeats):
            step, wide = (stride if repeat == 0 else 1), channels * 6
            z = clip(conv(y, channels, wide, 1, 1))
            z = clip(conv(z, wide, wide, 3, step, groups=wide))
            z = conv(z, wide, outputs, 1, 1)
            y = op.Add(y, z) if step == 1 and channels == outputs else z
            channels = outputs
    y = op.Gemm(op.Flatten(op.GlobalAveragePool(y)), w(channels, 1000), w.full(0, 1000))
    return op.model(y=y), {"x": random(1, 3, size, size)}


def transformer(batch: int, time: int, layers: int = 4, size: int = 128, heads: int = 4) -> Built:
    """Embedding, pre-norm self-attention and GELU layers, and a vocabulary of 1,000."""
    op = onward.OpBuilder()
    w = Weights(op)

    def norm(x: Any) -> Any:
        return op.LayerNormalization(x, w.full(1, size), w.full(0, size), axis=-1)

    def linear(x: Any, rows: int, columns: int) -> Any:
        return op.Add(op.MatMul(x, w(rows, columns)), w.full(0, columns))

    def split(x: Any) -> Any:
        parts = op.Reshape(x, np.array([batch, time, heads, size // heads]))
        return op.Transpose(parts, perm=[0, 2, 1, 3])

    tokens = op.input("tokens", "int64", (batch, time))
    x = op.Add(op.Gather(w(1000, size, fan_in=1), tokens), w(time, size, fan_in=1))
    for _ in range(layers):
        y = norm(x)
        q, k, v = (split(linear(y, size, size)) for _ in range(3))
        scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
        scores = op.Div(scores, np.float32(np.sqrt(size // heads)))
        mixed = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = op.Add(x, linear(op.Reshape(mixed, np.array([batch, time, size])), size, size))
        wide = linear(norm(x), size, 4 * size)
        half = op.Mul(np.float32(0.5), wide)
        gelu = op.Mul(half, op.Add(np.float32(1), op.Erf(op.Div(wide, np.float32(np.sqrt(2))))))
        x = op.Add(x, linear(gelu, 4 * size, size))
    tokens_fed = np.random.default_rng(1).integers(0, 1000, (batch, time))
    return op.model(y=linear(norm(x), size, 1000)), {"tokens": tokens_fed}


def lstm(batch: int, time: int, size: int = 128) -> Built:
    """Two LSTM layers and a linear one."""
    op = onward.OpBuilder()
    w = Weights(op)
    y = op.input("x", "float32", (time, batch, 64))
    for inputs in (64, size):
        terms = w(1, 4 * size, inputs, fan_in=inputs), w(1, 4 * size, size, fan_in=size)
        y = op.LSTM(y, *terms, w.full(0, 1, 8 * size), hidden_size=size, outputs=1)
        y = op.Squeeze(y, np.array([1]))
    return op.model(y=op.MatMul(y, w(size, 10))), {"x": random(time, batch, 64)}


SMALL: dict[str, Callable[[], Built]] = {
    "add": add,
    "twelve inputs": many_inputs,
    "mlp, batch 1": lambda: mlp(1),
}
BUILT: dict[str, Callable[[], Built]] = {
    "mlp, batch 1": lambda: mlp(1),
    "mlp, batch 32": lambda: mlp(32),
    "cnn, batch 8": lambda: cnn(8),
    "mobilenet-like, 128 x 128": lambda: mobilenet(128),
    "transformer, 8 x 64": lambda: transformer(8, 64),
    "lstm, 8 x 32": lambda: lstm(8, 32),
}
OPEN = {"silero-vad"}  # one of its branches takes windows of another size
REAL = ("magika", "orientation", "minilm", "silero-vad", "mnist-8", "kinematics")


def write(name: str, folder: Path) -> tuple[Path, Feeds]:
    """A model of BUILT or REAL as a file, every size fixed (but for OPEN), and feeds for it."""
    path = folder / f"{name.split(',')[0].replace(' ', '-')}-{len(list(folder.iterdir()))}.onnx"
    if name in BUILT:
        model, feeds = BUILT[name]()
    else:
        (real,) = (model for model in catalog.MODELS if model.name == name)
        session = onward.InferenceSession(real.path(), providers=["CPUExecutionProvider"])
        model, feeds = onward.load(real.path()), real.feeds(session)
        for value in model.graph.inputs:
            if value.name in feeds and name not in OPEN:
                value.shape = ir.Shape(feeds[value.name].shape)
    onward.save(model, path)
    return path, feeds
