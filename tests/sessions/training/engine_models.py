"""Small models of four kinds, each as ONNX and as torch computes it from the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.nn import functional as f

import onward

Array = np.ndarray[Any, Any]
Tensors = dict[str, Any]
CLASSES = 4


@dataclass(frozen=True)
class Case:
    """A model; what torch computes of its feeds, weights and dropout masks; how feeds are made."""

    model: Callable[[], ir.Model]
    forward: Callable[[Tensors, Tensors, Tensors], Any]  # weights, feeds, masks -> logits
    feeds: Callable[[np.random.Generator], dict[str, Array]]
    masks: tuple[str, ...] = ()

    def batches(self, count: int, seed: int = 1) -> list[dict[str, Array]]:
        rng = np.random.default_rng(seed)
        return [
            {**self.feeds(rng), "labels": rng.integers(0, CLASSES, 6, np.int64)}
            for _ in range(count)
        ]


def _weights(op: onward.OpBuilder, **shapes: tuple[int, ...]) -> dict[str, ir.Value]:
    rng = np.random.default_rng(0)
    return {
        name: op.initializer(name, (rng.normal(size=shape) * 0.3).astype(np.float32))
        for name, shape in shapes.items()
    }


def _floats(*shape: int) -> Callable[[np.random.Generator], dict[str, Array]]:
    return lambda rng: {"x": rng.normal(size=(6, *shape)).astype(np.float32)}


# -- multilayer perceptron -----------------------------------------------------------------------


def _mlp() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, w1=(8, 16), b1=(16,), w2=(16, CLASSES), b2=(CLASSES,))
    h = op.Tanh(op.Add(op.MatMul(op.input("x", "float32", ("batch", 8)), w["w1"]), w["b1"]))
    return op.model(logits=op.Add(op.MatMul(h, w["w2"]), w["b2"]))


def _torch_mlp(w: Tensors, feeds: Tensors, _: Tensors) -> Any:
    return torch.tanh(feeds["x"] @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


# -- convolutions with BatchNormalization ----------------------------------------------------------


def _cnn() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, k=(6, 2, 3, 3), bn_bias=(6,), head=(6, CLASSES))
    scale = op.initializer("bn_scale", np.linspace(0.5, 1.5, 6, dtype=np.float32))
    mean = op.initializer("mean", np.zeros(6, np.float32))
    variance = op.initializer("variance", np.ones(6, np.float32))
    y = op.Conv(op.input("x", "float32", ("batch", 2, 8, 8)), w["k"], pads=[1, 1, 1, 1])
    y = op.Relu(op.BatchNormalization(y, scale, w["bn_bias"], mean, variance))
    y = op.MaxPool(y, kernel_shape=[2, 2], strides=[2, 2])
    pooled = op.ReduceMean(y, [2, 3], keepdims=0)
    return op.model(logits=op.MatMul(pooled, w["head"]))


def _torch_cnn(w: Tensors, feeds: Tensors, _: Tensors) -> Any:
    y = f.conv2d(feeds["x"], w["k"], padding=1)
    y = f.batch_norm(y, None, None, w["bn_scale"], w["bn_bias"], training=True)
    y = f.max_pool2d(f.relu(y), 2)
    return y.mean((2, 3)) @ w["head"]


# -- a transformer block with Dropout --------------------------------------------------------------


def _transformer() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, table=(11, 8), q=(8, 8), k=(8, 8), v=(8, 8), up=(8, 16), down=(16, 8))
    w |= _weights(op, ln_bias=(8,), head=(8, CLASSES))
    scale = op.initializer("ln_scale", np.linspace(0.5, 1.5, 8, dtype=np.float32))
    x = op.Gather(w["table"], op.input("ids", "int64", ("batch", 5)))
    q, k, v = (op.MatMul(x, w[name]) for name in "qkv")
    scores = op.Div(op.MatMul(q, op.Transpose(k, perm=[0, 2, 1])), np.float32(8**0.5))
    weights, mask_1 = op.Dropout(op.Softmax(scores, axis=-1), 0.2, outputs=2)
    x = op.LayerNormalization(op.Add(x, op.MatMul(weights, v)), scale, w["ln_bias"], axis=-1)
    hidden, mask_2 = op.Dropout(op.Gelu(op.MatMul(x, w["up"])), 0.1, outputs=2)
    x = op.ReduceMean(op.Add(x, op.MatMul(hidden, w["down"])), [1], keepdims=0)
    return op.model(logits=op.MatMul(x, w["head"]), mask_1=mask_1, mask_2=mask_2)


def _torch_transformer(w: Tensors, feeds: Tensors, masks: Tensors) -> Any:
    x = w["table"][feeds["ids"]]
    q, k, v = (x @ w[name] for name in "qkv")
    weights = torch.softmax(q @ k.mT / 8**0.5, -1) * masks["mask_1"] / 0.8
    x = f.layer_norm(x + weights @ v, (8,), w["ln_scale"], w["ln_bias"])
    hidden = f.gelu(x @ w["up"]) * masks["mask_2"] / 0.9
    return (x + hidden @ w["down"]).mean(1) @ w["head"]


# -- LSTM ------------------------------------------------------------------------------------------


def _lstm() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, w=(1, 24, 5), r=(1, 24, 6), b=(1, 48), head=(6, CLASSES))
    x = op.Transpose(op.input("x", "float32", ("batch", 7, 5)), perm=[1, 0, 2])
    _, last, _ = op.LSTM(x, w["w"], w["r"], w["b"], hidden_size=6, outputs=3)
    return op.model(logits=op.MatMul(op.Squeeze(last, [0]), w["head"]))


def _torch_lstm(w: Tensors, feeds: Tensors, _: Tensors) -> Any:
    x = feeds["x"]
    h = c = x.new_zeros(x.shape[0], 6)
    bias = w["b"][0, :24] + w["b"][0, 24:]
    for t in range(x.shape[1]):
        i, o, forget, new = (x[:, t] @ w["w"][0].T + h @ w["r"][0].T + bias).chunk(4, 1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(i) * torch.tanh(new)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h @ w["head"]


CASES = {
    "mlp": Case(_mlp, _torch_mlp, _floats(8)),
    "cnn": Case(_cnn, _torch_cnn, _floats(2, 8, 8)),
    "transformer": Case(
        _transformer,
        _torch_transformer,
        lambda rng: {"ids": rng.integers(0, 11, (6, 5), np.int64)},
        ("mask_1", "mask_2"),
    ),
    "lstm": Case(_lstm, _torch_lstm, _floats(7, 5)),
}
