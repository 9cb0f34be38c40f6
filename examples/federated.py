"""Federated averaging: devices train on their own data, a server averages the parameters.

python examples/federated.py

In each round the server sends one buffer of parameters to every device. Each device trains a few
steps on its own digits (no device has all ten), and sends its buffer back.
"""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np

from onward import OpBuilder
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.artifacts import LossType, OptimType, generate_artifacts

DEVICES, ROUNDS, STEPS, SIZE = 5, 8, 25, 32
TEST = 500  # test images of the server


class Device:
    """A device: the artifacts, and images that never leave it."""

    def __init__(self, folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.model = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.model)
        self.optimizer.set_learning_rate(0.1)

    def train(self, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A few steps from the server's parameters; the parameters afterwards."""
        self.model.copy_buffer_to_parameters(parameters)
        self.model.train()
        for _ in range(STEPS):
            batch = rng.integers(0, len(self.labels), SIZE)
            self.model(self.images[batch], self.labels[batch])
            self.optimizer.step()
            self.model.lazy_reset_grad()
        return self.model.get_contiguous_parameters(trainable_only=True).numpy()


def main() -> None:
    images, labels = load_digits()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate_artifacts(
            build_classifier(),
            loss=LossType.CrossEntropyLoss,
            optimizer=OptimType.SGD,
            additional_output_names=["scores"],
            artifact_directory=folder,
        )
        server = Device(folder, images[:TEST], labels[:TEST])
        devices = []
        for number in range(DEVICES):  # each has written four of the ten digits
            own = np.isin(labels, [(2 * number + k) % 10 for k in range(4)])
            own[:TEST] = False
            devices.append(Device(folder, images[own], labels[own]))
        parameters = server.model.get_contiguous_parameters(trainable_only=True).numpy()
        print(f"start:   {accuracy(server):.1%}")
        for number in range(1, ROUNDS + 1):
            answers = [device.train(parameters, rng) for device in devices]
            weights = [len(device.labels) for device in devices]
            parameters = np.average(answers, axis=0, weights=weights).astype(np.float32)
            server.model.copy_buffer_to_parameters(parameters)
            print(f"round {number}: {accuracy(server):.1%}")


def accuracy(server: Device) -> float:
    _, scores = server.model.eval()(server.images, server.labels)
    return float((scores.argmax(axis=-1) == server.labels).mean())


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
