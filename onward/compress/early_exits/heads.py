"""Heads: small classifiers that answer from an inner value of the network.

features = mean over all axes but the batch's and the channels'
scores   = features . weight + bias                     (or with a hidden layer before it)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array
from onward.errors import OptionError, UnsupportedModel
from onward.graph.graph_ops import GraphOps

CRITERIA = ("max_softmax", "entropy", "margin")
HEADS = ("auto", "mean", "first")
_CHANNELS_FIRST = ("Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool")
_LOOK_BACK = 12  # nodes that are followed back to a convolution


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of one exit.

    Attributes:
        name: the exit's value
        batch_axis, channel_axis: axes of that value
        pool: "mean" over the other axes, or "first": the first token of each sample
        channels: the number of features
        weights: by name (weight, bias; hidden.weight and hidden.bias), as numpy arrays
        threshold: rows leave whose confidence is at least this
    """

    name: str
    batch_axis: int
    channel_axis: int
    pool: str
    channels: int
    weights: Mapping[str, Array] = field(default_factory=dict)
    threshold: float = np.inf


def plan_head(value: ir.Value, batch_axis: int, shape: tuple[int, ...], head: str) -> Head:
    """Choose the axes of a head; `shape` is the value's in a run."""
    if head not in HEADS:
        raise OptionError(f"no head {head!r}\nit must be one of {', '.join(HEADS)}")
    if value.dtype is None or not value.dtype.is_floating_point():
        kind = "unknown type" if value.dtype is None else value.dtype.name
        raise UnsupportedModel(
            f"an exit needs numbers, and {value.name!r} is {kind}\nname another value"
        )
    if len(shape) < 2:
        raise UnsupportedModel(
            f"{value.name!r} has shape {shape}: no features per row\nname another value"
        )
    if head == "first" and len(shape) != 3:
        raise OptionError(f"head 'first' takes tokens (batch, tokens, size), not shape {shape}")
    channel_axis = _channel_axis(value, batch_axis, len(shape))
    pool = "first" if head == "first" else "mean"
    return Head(
        name=str(value.name),
        batch_axis=batch_axis,
        channel_axis=channel_axis,
        pool=pool,
        channels=shape[channel_axis],
    )


def _channel_axis(value: ir.Value, batch_axis: int, rank: int) -> int:
    """Images: axis 1; tokens: the last axis, or axis 1 behind a convolution."""
    known = [] if value.shape is None else list(value.shape)
    if rank == 2:
        return 1 - batch_axis
    if batch_axis == 0 and (rank > 3 or _is_behind_convolution(value)):
        axis_1_known = not known or isinstance(known[1], int)
        return 1 if axis_1_known else rank - 1
    return rank - 1


def _is_behind_convolution(value: ir.Value | None) -> bool:
    for _ in range(_LOOK_BACK):
        node = None if value is None else value.producer()
        if node is None or node.op_type in ("MatMul", "Gemm", "LayerNormalization", "Transpose"):
            return False
        if node.op_type in _CHANNELS_FIRST:
            return True
        value = node.inputs[0] if node.inputs else None
    return False


def pool(op: GraphOps, x: ir.Value, head: Head) -> ir.Value:
    """The features of each row: (batch, channels), float32."""
    rank = len(x.shape) if x.shape is not None else 0
    axes = [i for i in range(rank) if i not in (head.batch_axis, head.channel_axis)]
    features: ir.Value
    if head.pool == "first":
        features = op.Gather(x, np.int64(0), axis=axes[0])
    elif rank == 4 and (head.batch_axis, head.channel_axis) == (0, 1):
        features = op.Flatten(op.GlobalAveragePool(x), axis=1)
    elif axes:
        features = op.ReduceMean(x, axes, keepdims=0)
    else:
        features = x
    if head.batch_axis > head.channel_axis:
        features = op.Transpose(features, perm=[1, 0])
    if x.dtype is not ir.DataType.FLOAT:
        features = op.Cast(features, to=int(ir.DataType.FLOAT))
    return features


def weight_names(number: int, head: Head) -> dict[str, str]:
    """The names of an exit's weights in the model."""
    return {key: f"exit_{number}.{key}" for key in head.weights}


def threshold_name(number: int) -> str:
    """The name of the initializer that holds an exit's threshold."""
    return f"exit_{number}.threshold"


def score(op: GraphOps, features: ir.Value, head: Head, number: int) -> ir.Value:
    """The scores of each class, from the features."""
    made = {
        key: op.initializer(name, head.weights[key])
        for key, name in weight_names(number, head).items()
    }
    x = features
    if "hidden.weight" in made:
        x = op.Relu(op.Gemm(x, made["hidden.weight"], made["hidden.bias"]))
    scores: ir.Value = op.Gemm(x, made["weight"], made["bias"])
    return scores


def initial_weights(
    channels: int, classes: int, hidden: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Untrained weights of a head."""

    def draw(fan_in: int, fan_out: int) -> Any:
        spread = 1 / np.sqrt(fan_in)
        return rng.uniform(-spread, spread, (fan_in, fan_out)).astype(np.float32)

    weights: dict[str, Array] = {}
    if hidden:
        weights["hidden.weight"] = draw(channels, hidden)
        weights["hidden.bias"] = np.zeros(hidden, np.float32)
    weights["weight"] = draw(hidden or channels, classes)
    weights["bias"] = np.zeros(classes, np.float32)
    return weights


def confidence(op: GraphOps, scores: ir.Value, criterion: str) -> ir.Value:
    """How sure each row is, from 0 to 1.

    max_softmax: the largest probability; margin: the largest minus the second;
    entropy: 1 - entropy / log(classes)
    """
    p = op.Softmax(scores, axis=-1)
    if criterion == "max_softmax":
        result: ir.Value = op.ReduceMax(p, [-1], keepdims=0)
    elif criterion == "margin":
        best, _ = op.TopK(p, [2], axis=-1, outputs=2)
        result = op.ReduceSum(op.Mul(best, np.array([1, -1], np.float32)), [-1], keepdims=0)
    else:
        assert scores.shape is not None
        classes = scores.shape[-1]
        assert isinstance(classes, int)
        sums = op.ReduceSum(op.Mul(p, op.LogSoftmax(scores, axis=-1)), [-1], keepdims=0)
        result = op.Add(op.Div(sums, np.float32(np.log(classes))), np.float32(1))
    return result


def confidences(scores: Array, criterion: str) -> Array:
    """`confidence` in numpy."""
    shifted = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)
    p = np.exp(shifted)
    p /= p.sum(axis=-1, keepdims=True)
    if criterion == "max_softmax":
        found = p.max(axis=-1)
    elif criterion == "margin":
        best = np.sort(p, axis=-1)
        found = best[:, -1] - best[:, -2]
    else:
        logs = np.log(np.maximum(p, 1e-300))
        found = 1 + (p * logs).sum(axis=-1) / np.log(scores.shape[-1])
    return np.asarray(found, np.float32)
