"""Models for the serving rows, written with their answers: every wrong answer is found.

Each request has data of its own, drawn from its number, and numpy computes the answer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import onward

SIZE = 64
NAME = "answers"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Weights:
    """The parameters of one generation of the model."""

    w1: Array
    b1: Array
    w2: Array


def weights(generation: int) -> Weights:
    rng = np.random.default_rng(generation)
    w1 = rng.normal(0, SIZE**-0.5, (SIZE, SIZE)).astype(np.float32)
    w2 = rng.normal(0, SIZE**-0.5, (SIZE, 10)).astype(np.float32)
    return Weights(w1, rng.normal(size=SIZE).astype(np.float32), w2)


def make_input(number: int) -> Array:
    """The input of a request: one to three rows, like no other request's."""
    rng = np.random.default_rng(1_000_000 + number)
    return rng.normal(size=(1 + number % 3, SIZE)).astype(np.float32)


def write_model(path: Path, generation: int = 0) -> None:
    """scores = relu(x w1 + b1) w2, and the number of the generation in each row.

    The file appears at once, as a careful user replaces it.
    """
    w = weights(generation)
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", SIZE))
    hidden = op.Relu(op.Gemm(x, op.initializer("w1", w.w1), op.initializer("b1", w.b1)))
    scores = op.MatMul(hidden, op.initializer("w2", w.w2))
    zero = op.Mul(op.ReduceMean(op.Clip(x, np.float32(-9), np.float32(9)), np.array([1])),
                  np.float32(0))  # fmt: skip
    marked = op.Add(zero, op.initializer("generation", np.float32(generation)))
    model = op.model(scores=scores, made=marked)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parents[2] / f".{generation}.onnx"  # outside of the folder of models
    onward.save(model, temporary)
    os.replace(temporary, path)


def wrong_scores(number: int, outputs: dict[str, Array]) -> str:
    """What is wrong with an answer of `write_model`; empty if it is right."""
    if set(outputs) != {"scores", "made"}:
        return f"the outputs are {sorted(outputs)}"
    x, made = make_input(number), outputs["made"].ravel()
    if made.shape != (len(x),):
        return f"request {number} got the wrong scores: {made.size} rows for {len(x)}"
    if (made != made[0]).any():
        return f"rows of one answer are of generations {made.tolist()}"
    w = weights(int(made[0]))
    expected = np.maximum(x @ w.w1 + w.b1, 0) @ w.w2
    scores = outputs["scores"]
    if scores.shape != expected.shape or not np.allclose(scores, expected, rtol=1e-3, atol=1e-4):
        return f"request {number} got the wrong scores"
    return ""


def write_slow_model(path: Path, rounds: int, max_queue_size: int) -> None:
    """y = 2 x + 1, after work that is the same for each row, with a queue of this size."""
    op = onward.OpBuilder()
    rng = np.random.default_rng(0)
    x = op.input("x", "float32", ("batch", SIZE))
    wide = op.initializer("wide", rng.normal(0, 0.1, (512, SIZE)).astype(np.float32))
    square = op.initializer("square", rng.normal(0, 0.04, (512, 512)).astype(np.float32))
    narrow = op.initializer("narrow", rng.normal(0, 0.1, (SIZE, 512)).astype(np.float32))
    h = op.MatMul(op.Mul(op.Unsqueeze(x, np.array([1])), wide), narrow)  # (batch, 512, 512)
    for _ in range(rounds):
        h = op.Tanh(op.MatMul(h, square))
    nothing = op.Min(op.Abs(op.ReduceMean(h, np.array([1, 2]), keepdims=0)), np.float32(0))
    answer = op.Add(op.Mul(x, np.float32(2)), np.float32(1))
    model = op.model(y=op.Add(answer, op.Unsqueeze(nothing, np.array([1]))))
    path.parent.mkdir(parents=True, exist_ok=True)
    onward.save(model, path)
    (path.parents[1] / "config.pbtxt").write_text(
        f'name: "{path.parents[1].name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 4\n'
        "dynamic_batching { default_queue_policy { max_queue_size: %d } }\n" % max_queue_size
    )


def wrong_double(number: int, outputs: dict[str, Array]) -> str:
    """What is wrong with an answer of `write_slow_model`; empty if it is right."""
    expected = 2 * make_input(number) + 1
    y = outputs.get("y")
    if y is None or y.shape != expected.shape or not np.allclose(y, expected, rtol=1e-5):
        return f"request {number} got a wrong answer"
    return ""
