"""Personalise a model on a device, the server's part: make the artifacts that the device trains.

python examples/on_device/make_artifacts.py
python examples/on_device/train_on_device.py

A small convolutional network learns upright digits here. Then a folder of files goes to the device:
training, evaluation and optimizer model, checkpoint, and the owner's handwriting, which slants.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from onward import OpBuilder
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.artifacts import LossType, OptimType, generate_artifacts

FOLDER = Path("on_device_artifacts")
TRAIN = 1200  # images that the server learns from; the others are the owner's
SLANT = (3, 2, 2, 1, 1, 0, 0, -1)  # pixels by which each row moves to the right


def main() -> None:
    images, labels = load_digits()
    generate_artifacts(
        build_classifier(),
        requires_grad=["conv.weight", "conv.bias", "head.weight", "head.bias"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        additional_output_names=["scores"],
        artifact_directory=FOLDER,
    )
    learn(images[:TRAIN], labels[:TRAIN])
    np.savez(FOLDER / "handwriting.npz", images=slanted(images[TRAIN:]), labels=labels[TRAIN:])
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{FOLDER}: {size / 1024:.0f} KiB for the device")


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images of 8 x 8 in 0..1, and their labels."""
    with files("onward").joinpath("data/digits.npz").open("rb") as file:
        data = np.load(file)
        return data["images"].astype(np.float32)[:, None] / 16, data["labels"].astype(np.int64)


def build_classifier() -> object:
    """A convolution, pooled, and a linear layer on top."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    image = op.input("image", "float32", ("batch", 1, 8, 8))
    w = op.initializer("conv.weight", rng.normal(0, 0.4, size=(16, 1, 3, 3)).astype(np.float32))
    b = op.initializer("conv.bias", np.zeros(16, np.float32))
    maps = op.Relu(op.Conv(image, w, b, pads=[1, 1, 1, 1]))
    features = op.Flatten(op.MaxPool(maps, kernel_shape=[2, 2], strides=[2, 2]))
    head = op.initializer("head.weight", rng.normal(0, 0.05, size=(256, 10)).astype(np.float32))
    bias = op.initializer("head.bias", np.zeros(10, np.float32))
    return op.model(scores=op.Gemm(features, head, bias))


def learn(images: np.ndarray, labels: np.ndarray, epochs: int = 12, size: int = 48) -> None:
    """Train on the server with the same artifacts, and save the result in their checkpoint."""
    state = CheckpointState.load_checkpoint(FOLDER / "checkpoint")
    model = Module(FOLDER / "training_model.onnx", state)
    optimizer = Optimizer(FOLDER / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(0.01)
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(labels)), len(labels) // size):
            model(images[batch], labels[batch])
            optimizer.step()
            model.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, FOLDER / "checkpoint")


def slanted(images: np.ndarray) -> np.ndarray:
    """Slanted digits: each row is shifted to the right and padded with blanks."""
    leaning = np.zeros_like(images)
    for row, shift in enumerate(SLANT):
        moved = np.roll(images[:, :, row], shift, axis=-1)
        blank = slice(0, shift) if shift >= 0 else slice(shift, None)
        moved[..., blank] = 0
        leaning[:, :, row] = moved
    return leaning


if __name__ == "__main__":
    main()
