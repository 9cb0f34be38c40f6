"""Cases of rules/norm.py and rules/scale.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, positive, spread


def _norm(operator: str, note: str, feeds: dict[str, Any], outputs: int = 1, **rest: Any) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd", "differences", "fixed") if n in rest}

    def build(op: Any, **inputs: Any) -> Any:
        return getattr(op, operator)(*inputs.values(), outputs=outputs, **rest)

    return Case(operator, build, feeds, note, **options)


# torch's batch_norm takes the statistics for constants; its own autograd is asked for the rest
_UNLIKE_TORCH: dict[str, Any] = {"autograd": False}


def _batch(note: str, *shape: int, **rest: Any) -> Case:
    channels = shape[1]
    feeds = {
        "x": normal(*shape),
        "scale": normal(channels),
        "b": normal(channels, seed=1),
        "mean": normal(channels, seed=2),
        "var": positive(channels),
    }
    training, returned = rest.get("training_mode", 0), rest.pop("returned", 1)

    def build(op: Any, **inputs: Any) -> Any:
        made = op.BatchNormalization(*inputs.values(), outputs=3 if training else 1, **rest)
        return made[:returned] if training else made

    return Case("BatchNormalization", build, feeds, note, **_UNLIKE_TORCH)


def _running_read(op: Any, x: Any, scale: Any, b: Any, mean: Any, var: Any) -> Any:
    """The running mean is read in the graph itself."""
    y, running, _ = op.BatchNormalization(x, scale, b, mean, var, training_mode=1, outputs=3)
    return op.Mul(y, op.Unsqueeze(running, [1, 2])), running


_READ = {
    "x": normal(2, 3, 4, 2),
    "scale": normal(3),
    "b": normal(3, seed=1),
    "mean": normal(3, seed=2),
    "var": positive(3),
}


def _layer(note: str, *shape: int, axis: int = -1, **rest: Any) -> Case:
    inner = shape[axis:]
    feeds = {"x": normal(*shape), "scale": normal(*inner), "b": normal(*inner, seed=1)}
    return _norm("LayerNormalization", note, feeds, axis=axis, **rest)


def _layer_statistics_read(op: Any, x: Any, scale: Any) -> Any:
    y, mean, inv = op.LayerNormalization(x, scale, axis=-1, stash_type=1, outputs=3)
    return op.Add(y, op.CastLike(op.Mul(mean, inv), x))


_CHANNELS = {"scale": normal(4), "b": normal(4, seed=1)}

CASES = [
    _batch("inference", 2, 3, 4, 5, epsilon=1e-2),
    _batch("inference, two axes", 4, 3),
    _batch("training", 3, 2, 4, 5, training_mode=1, epsilon=1e-2),
    _batch("training, two axes", 4, 3, training_mode=1),
    _batch("training, three axes", 2, 3, 4, training_mode=1),
    _batch(
        "training, running ones returned", 3, 2, 4, 5, training_mode=1, returned=3, momentum=0.7
    ),
    _batch("training, momentum 0", 3, 2, 4, training_mode=1, returned=3, momentum=0.0),
    Case("BatchNormalization", _running_read, _READ, "running mean read", **_UNLIKE_TORCH),
    Case(
        "BatchNormalization",
        lambda op, x, scale, b, mean, var: op.BatchNormalization(x, scale, b, mean, var),
        _READ,
        "inference, without its statistics",
        wrt=("x", "scale", "b"),
    ),
    _layer("", 2, 3, 4),
    _layer("axis in front", 2, 3, 4, axis=1),
    _layer("every axis", 2, 3, 4, axis=0, epsilon=1e-2),
    _layer("two axes", 3, 5, axis=-1),
    _norm("LayerNormalization", "without b", {"x": normal(2, 3, 4), "scale": normal(4)}),
    _norm(
        "LayerNormalization",
        "scale broadcasts",
        {"x": normal(2, 3, 4), "scale": normal(1, 4), "b": normal(3, 1)},
        axis=1,
    ),
    Case(
        "LayerNormalization",
        _layer_statistics_read,
        {"x": normal(2, 3, 4), "scale": normal(4)},
        "statistics read",
        differences=False,  # they are float32: too coarse for differences in float64
        autograd=False,
    ),
    _norm("RMSNormalization", "", {"x": normal(2, 3, 4), "scale": normal(4)}),
    _norm(
        "RMSNormalization", "axis in front", {"x": normal(2, 3, 4), "scale": normal(3, 4)}, axis=1
    ),
    _norm(
        "RMSNormalization", "scale broadcasts", {"x": normal(2, 3, 4), "scale": normal(4)}, axis=1
    ),
    _norm("InstanceNormalization", "", {"x": normal(2, 4, 3, 3), **_CHANNELS}),
    _norm("InstanceNormalization", "one axis", {"x": normal(2, 4, 5), **_CHANNELS}, epsilon=1e-2),
    _norm("GroupNormalization", "", {"x": normal(2, 4, 3, 3), **_CHANNELS}, num_groups=2),
    _norm("GroupNormalization", "one group", {"x": normal(2, 4, 5), **_CHANNELS}, num_groups=1),
    _norm("GroupNormalization", "each channel", {"x": normal(2, 4, 5), **_CHANNELS}, num_groups=4),
    _norm("LpNormalization", "p = 2", {"x": normal(2, 3, 4)}),
    _norm("LpNormalization", "p = 1", {"x": spread(2, 3, 4)}, p=1, axis=1),
    _norm(
        "LpNormalization",
        "a row of zeros",
        {"x": np.array([[0.0, 0.0], [3.0, 4.0]])},
        differences=False,
        autograd=False,  # torch divides by the norm
        ort=False,  # 1.31 gives NaN
    ),
    _norm("MeanVarianceNormalization", "", {"x": normal(2, 3, 4, 2)}),
    _norm("MeanVarianceNormalization", "other axes", {"x": normal(2, 3, 4)}, axes=[-1, 1]),
    _norm("LRN", "", {"x": normal(2, 5, 3, 2)}, size=3, alpha=0.5, beta=0.6, bias=1.5),
    _norm("LRN", "even size", {"x": normal(1, 5, 2, 3)}, size=4, alpha=0.5, ort=False),
    _norm("LRN", "more than there are", {"x": normal(1, 2, 3, 2)}, size=7, alpha=0.5),
]
