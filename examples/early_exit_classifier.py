"""Train a deep classifier of digits, give it an exit, and see which images leave early.

python examples/early_exit_classifier.py [--steps 200]

The network has eight convolutions, the last six of them wide. An exit behind the second wide one
answers the images that it is sure of; only the others go through the rest. Data: 1,797 images of
digits, which come with Onward: 50 % train the network, 30 % its exit and the threshold, and 20 %
are read once, at the end.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from typing import Any

import numpy as np
import onnx_ir as ir

from onward import InferenceSession, TrainingSession
from onward.compress import add_exits
from onward.compress.timing import time_in_turns
from onward.graph.builder import OpBuilder
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.optimizers.schedules import Cosine
from onward.programs.export import export_model

NARROW, WIDE, DEPTH = 16, 32, 6  # channels of the first two convolutions and of the others
EXIT = "wide_1"
Array = np.ndarray[Any, Any]


def build(seed: int = 0) -> ir.Model:
    """Two narrow convolutions on 8 x 8 pixels, six wide ones on 4 x 4, and a linear layer."""
    rng, op = np.random.default_rng(seed), OpBuilder()

    def weights(name: str, *shape: int) -> list[ir.Value]:
        spread = np.sqrt(2 / np.prod(shape[1:]))
        weight = (rng.standard_normal(shape) * spread).astype(np.float32)
        bias = np.zeros(shape[0], np.float32)
        return [op.initializer(f"{name}.weight", weight), op.initializer(f"{name}.bias", bias)]

    def conv(x: ir.Value, name: str, inputs: int, outputs: int) -> ir.Value:
        made: ir.Value = op.Relu(
            op.Conv(x, *weights(name, outputs, inputs, 3, 3), pads=[1, 1, 1, 1])
        )
        return made

    x = op.input("image", "float32", ("batch", 1, 8, 8))
    x = conv(conv(x, "narrow_0", 1, NARROW), "narrow_1", NARROW, NARROW)
    x = op.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2])
    for layer in range(DEPTH):
        x = conv(x, f"wide_{layer}", WIDE if layer else NARROW, WIDE)
        x.name = f"wide_{layer}"
    x = op.Flatten(op.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2]))
    return op.model(scores=op.Gemm(x, *weights("head", 10, 4 * WIDE), transB=1))


def train(model: ir.Model, images: Array, labels: Array, steps: int) -> ir.Model:
    """Train on random batches of 64."""
    rng = np.random.default_rng(0)
    options = {"schedule": Cosine(steps=steps)}
    session = TrainingSession(model, CrossEntropy(), AdamW(lr=1e-3), options)
    for _ in range(steps):
        rows = rng.integers(0, len(images), 64)
        session.step({"image": images[rows], "labels": labels[rows]})
    return export_model(model, dict(session.parameters))


def accuracy(scores: Array, labels: Array) -> float:
    return float(np.mean(scores.argmax(1) == labels))


def main(steps: int = 200) -> tuple[float, float]:
    """Return how many times as fast it is, and the points of accuracy that it loses."""
    with files("onward").joinpath("data/digits.npz").open("rb") as file:
        digits = np.load(file)
        images = (digits["images"].astype(np.float32) / 16)[:, None]
        labels = digits["labels"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    first, second, test = np.split(order, [int(0.5 * len(order)), int(0.8 * len(order))])
    model = train(build(), images[first], labels[first], steps)
    report = add_exits(
        model,
        at=[EXIT],
        data={"image": images[second], "label": labels[second]},
        target="label",
        drop=0.002,
        frozen=False,
        steps=steps,
        batch=64,
    )
    print(report)
    feeds = {"image": images[test]}
    plain = InferenceSession(model).run(["scores"], feeds)[0]
    scores, exits = InferenceSession(report.model).run(["scores", "exit"], feeds)
    lost = 100 * (accuracy(plain, labels[test]) - accuracy(scores, labels[test]))
    times = time_in_turns({"plain": model, "exits": report.model}, feeds)
    speed = times["plain"] / times["exits"]
    print(f"test: {np.mean(exits == 0):.0%} of {len(test)} images leave early")
    print(f"accuracy {accuracy(plain, labels[test]):.2%} -> {accuracy(scores, labels[test]):.2%}")
    print(f"{speed:.2f} times as fast")
    return speed, lost


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="of each training")
    main(parser.parse_args().steps)
