"""Small transformers, written by hand, and a comparison of their gradients with all tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import onward
from onward import losses, optimizers

WORDS, SIZE, HEADS, CLASSES = 11, 8, 2, 3
ORT, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"

Array = np.ndarray[Any, Any]


def transformer(
    end: str = "first",
    *,
    shape: tuple[Any, Any] = ("batch", "time"),
    dropout: float = 0.0,
    causal: bool = False,
    blocks: int = 1,
    low: float = -1e9,
    dtype: Any = np.float32,
) -> Any:
    """Embeddings, blocks, and an end: which tokens the result is computed from.

    first: the token at position 0; mean: the mean of the tokens; all: the mean of all positions;
    tokens: scores of every token.
    """
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    kind = 1 if dtype == np.float32 else 11
    ids = op.input("ids", "int64", shape)
    mask = op.input("mask", "int64", shape)

    def weight(name: str, *sizes: int) -> Any:
        drawn = rng.normal(0, 0.5, sizes).astype(dtype)
        return op.initializer(name, drawn if len(sizes) > 1 else drawn + 1)

    def linear(name: str, x: Any, inner: int, outer: int) -> Any:
        y = op.MatMul(x, weight(f"{name}.weight", inner, outer))
        return op.Add(y, weight(f"{name}.bias", outer))

    def normed(name: str, x: Any) -> Any:
        scale, bias = weight(f"{name}.scale", SIZE), weight(f"{name}.bias", SIZE)
        return op.LayerNormalization(x, scale, bias)

    def heads(x: Any) -> Any:
        return op.Transpose(op.Reshape(x, [0, 0, HEADS, SIZE // HEADS]), perm=[0, 2, 1, 3])

    length = op.Shape(ids, start=1)
    position = op.Unsqueeze(op.Range(np.int64(0), op.Squeeze(length, [0]), np.int64(1)), [0])
    x = op.Gather(weight("words", WORDS, SIZE), ids)
    x = op.Add(x, op.Gather(weight("positions", 16, SIZE), position))
    hidden = op.Sub(dtype(1), op.Cast(op.Unsqueeze(mask, [1, 2]), to=kind))
    added = op.Mul(hidden, dtype(low))  # (batch, 1, 1, time)
    if causal:
        later = op.Less(op.Unsqueeze(position, [2]), op.Unsqueeze(position, [1]))
        added = op.Add(added, op.Mul(op.Cast(later, to=kind), dtype(low)))
    for i in range(blocks):
        q, k, v = (heads(linear(f"{i}.{n}", x, SIZE, SIZE)) for n in "qkv")
        scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
        p = op.Softmax(op.Add(op.Mul(scores, dtype(0.5)), added), axis=-1)
        y = op.Reshape(op.Transpose(op.MatMul(p, v), perm=[0, 2, 1, 3]), [0, 0, SIZE])
        y = linear(f"{i}.out", y, SIZE, SIZE)
        if dropout:
            y = op.Dropout(y, dtype(dropout), np.array(True))
        x = normed(f"{i}.first", op.Add(x, y))
        y = linear(f"{i}.down", op.Tanh(linear(f"{i}.up", x, SIZE, 12)), 12, SIZE)
        x = normed(f"{i}.second", op.Add(x, y))
    if end == "first":
        x = op.Gather(x, np.int64(0), axis=1)
    elif end == "mean":
        real = op.Cast(op.Unsqueeze(mask, [2]), to=kind)
        total = op.ReduceSum(op.Mul(x, real), [1], keepdims=0)
        count = op.Max(op.ReduceSum(real, [1], keepdims=0), dtype(1))
        x = op.Div(total, count)
    elif end == "all":
        x = op.ReduceMean(x, [1], keepdims=0)
    return op.model(scores=linear("head", x, SIZE, CLASSES))


def loss_of(end: str) -> Any:
    return (
        losses.CrossEntropy(axis=-1, ignore_index=-1) if end == "tokens" else losses.CrossEntropy()
    )


def feeds_of(mask: Array, end: str = "first", seed: int = 0) -> dict[str, Array]:
    """Feeds with this mask; labels count at every second token."""
    rng = np.random.default_rng(seed)
    feeds = {"ids": rng.integers(0, WORDS, mask.shape), "mask": mask.astype(np.int64)}
    if end != "tokens":
        return {**feeds, "labels": rng.integers(0, CLASSES, len(mask))}
    labels = np.where((mask == 1) & (rng.random(mask.shape) < 0.5), 1, -1)
    return {**feeds, "labels": np.where(labels == 1, rng.integers(0, CLASSES, mask.shape), -1)}


def session(
    model: Any, loss: Any, sparsity: Any, provider: str = ORT, **options: Any
) -> onward.TrainingSession:
    given = {"sparsity": sparsity, **options}
    return onward.TrainingSession(model, loss, optimizers.SGD(lr=0.1), given, providers=[provider])


def loss_and_gradients(
    session: onward.TrainingSession, feeds: Mapping[str, Any]
) -> tuple[float, dict[str, Array]]:
    loss = session.run_forward(feeds)["loss"]
    session.run_backward()
    gradients = {name: np.array(each) for name, each in session.get_gradients().items()}
    session.clear_gradients()
    return float(np.asarray(loss)), gradients


def check_same(
    dense: onward.TrainingSession, packed: onward.TrainingSession, feeds: Mapping[str, Any]
) -> None:
    """Losses and gradients are equal, in float32 to 1e-6 of the norm of all gradients."""
    loss, gradients = loss_and_gradients(dense, feeds)
    other_loss, others = loss_and_gradients(packed, feeds)
    is_double = all(each.dtype == np.float64 for each in gradients.values())
    tolerance = 1e-13 if is_double else 1e-6
    np.testing.assert_allclose(other_loss, loss, rtol=tolerance)
    assert gradients.keys() == others.keys()
    total = np.sqrt(sum(float((each**2).sum()) for each in gradients.values()))
    for name, expected in gradients.items():
        error = float(np.linalg.norm(others[name] - expected))
        assert error <= tolerance * total, (name, error, total)


def lengths(*tokens: int, time: int = 6) -> Array:
    """A mask of samples with these numbers of tokens, padded at the end."""
    return (np.arange(time) < np.array(tokens)[:, None]).astype(np.int64)
