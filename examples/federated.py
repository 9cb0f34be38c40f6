"""Federated averaging: devices train on their own data, a server averages the parameters.

python examples/federated.py

In each round the server sends its parameters to every device. Each device trains on its own digits
(no device has all ten) and sends its parameters back. All run in this process; examples/flower has
the same over a network, with Flower.
"""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from onward import OpBuilder
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from onward.training.federated.local_training import LocalSettings, LocalTraining
from onward.training.federated.simulation import simulate

DEVICES, ROUNDS = 5, 8
TEST = 500  # test images of the server
LOCAL = LocalSettings(epochs=2, learning_rate=0.1)


def main() -> None:
    images, labels = load_digits()
    test = {"pixels": images[:TEST], "labels": labels[:TEST]}
    devices = {}
    for number in range(DEVICES):  # each has written four of the ten digits
        own = np.isin(labels, [(2 * number + k) % 10 for k in range(4)])
        own[:TEST] = False
        devices[f"device {number}"] = {"pixels": images[own], "labels": labels[own]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate_artifacts(
            build_classifier(),
            loss=LossType.CrossEntropyLoss,
            optimizer=OptimType.SGD,
            additional_output_names=["scores"],
            artifact_directory=folder,
        )
        start = LocalTraining(folder, metrics=["accuracy"])
        print(f"start:   {start.evaluate(start.parameters, test).metrics['accuracy']:.1%}")
        simulate(
            folder,
            devices,
            rounds=ROUNDS,
            local=LOCAL,
            held_out=test,
            metrics=["accuracy"],
            on_round=show,
        )


def show(record: dict[str, Any]) -> None:
    print(f"round {record['round']}: {record['held_out_accuracy']:.1%}")


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images of 64 pixels in 0..1, and their labels."""
    with files("onward").joinpath("data/digits.npz").open("rb") as file:
        data = np.load(file)
        pixels = data["images"].astype(np.float32).reshape(-1, 64) / 16
        return pixels, data["labels"].astype(np.int64)


def build_classifier() -> object:
    """Two linear layers."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    x = op.input("pixels", "float32", ("batch", 64))
    w1 = op.initializer("fc1.weight", rng.normal(0, 0.18, size=(64, 32)).astype(np.float32))
    b1 = op.initializer("fc1.bias", np.zeros(32, np.float32))
    w2 = op.initializer("fc2.weight", rng.normal(0, 0.25, size=(32, 10)).astype(np.float32))
    b2 = op.initializer("fc2.bias", np.zeros(10, np.float32))
    return op.model(scores=op.Gemm(op.Relu(op.Gemm(x, w1, b1)), w2, b2))


if __name__ == "__main__":
    main()
