"""The demo's data and model: handwritten digits, and a small network with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.graph.paths import writing

Array = np.ndarray[Any, Any]
TRAIN = 1200  # training images; the others are held out
CHANNELS, HIDDEN = (16, 32), 64


def load_digits() -> tuple[Array, Array]:
    """1,797 images, 8 x 8 in 0..1, and labels: UCI's Optical Recognition of Handwritten Digits."""
    with files("onward").joinpath("data/digits.npz").open("rb") as file:
        data = np.load(file, allow_pickle=False)
        images = data["images"].astype(np.float32)[:, None] / 16
        return images, data["labels"].astype(np.int64)


def write_digits(folder: Path) -> tuple[Path, Path]:
    """Write the training images and the held-out ones as .npz files: `image` and `label`."""
    images, labels = load_digits()
    files = folder / "digits.npz", folder / "held-out.npz"
    for file, part in zip(files, (slice(TRAIN), slice(TRAIN, None))):
        with writing(file):
            np.savez(file, image=images[part], label=labels[part])
    return files


def build_network(seed: int = 0, outputs: Sequence[str] = ("scores", "probabilities")) -> ir.Model:
    """Two convolutions and two linear layers with random weights: image -> scores."""
    op, rng = OpBuilder(name="digits"), np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> tuple[ir.Value, ir.Value]:
        std = np.sqrt(2 / np.prod(shape[1:]))  # He initialization
        weight = rng.normal(0, std, shape).astype(np.float32)
        bias = np.zeros(shape[0], np.float32)
        return op.initializer(f"{name}.weight", weight), op.initializer(f"{name}.bias", bias)

    first, second = CHANNELS
    image = op.input("image", "float32", ("batch", 1, 8, 8))
    maps = op.Relu(op.Conv(image, *weights("conv1", first, 1, 3, 3), pads=[1, 1, 1, 1]))
    maps = op.Relu(op.Conv(maps, *weights("conv2", second, first, 3, 3), pads=[1, 1, 1, 1]))
    pooled = op.Flatten(op.MaxPool(maps, kernel_shape=[2, 2], strides=[2, 2]))
    hidden = op.Relu(op.Gemm(pooled, *weights("hidden", HIDDEN, second * 16), transB=1))
    kept = op.Dropout(hidden, 0.25)
    scores = op.Gemm(kept, *weights("scores", 10, HIDDEN), transB=1)
    named = {"scores": scores, "probabilities": op.Softmax(scores, axis=-1)}
    return op.model(**{name: named[name] for name in outputs})


def batches(images: Array, labels: Array, size: int, seed: Any) -> Iterator[dict[str, Array]]:
    """Each image once, in random order and shifted; an incomplete last batch is dropped."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield {"image": shift(images[chosen], rng), "labels": labels[chosen]}


def shift(images: Array, rng: np.random.Generator) -> Array:
    """Each image shifted by up to one pixel up or down, left or right."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifted = np.empty_like(images)
    for i, (down, right) in enumerate(rng.integers(0, 3, (len(images), 2))):
        shifted[i] = padded[i, :, down : down + 8, right : right + 8]
    return shifted
