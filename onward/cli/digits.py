"""The demo's model and data: handwritten digits, and a small classifier written in code."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
TRAIN = 1200  # images that the classifier is fitted on; the others judge it
FILTERS = 48


def load_digits() -> tuple[Array, Array]:
    """1,797 images of 8 x 8 in 0..1 (UCI's Optical Recognition of Handwritten Digits), labels."""
    with files("onward").joinpath("data/digits.npz").open("rb") as file:
        data = np.load(file)
        images = data["images"].astype(np.float32)[:, None] / 16
        return images, data["labels"].astype(np.int64)


def build_classifier(images: Array, labels: Array) -> ir.Model:
    """Random convolution filters, pooled; a linear layer on top, fitted in closed form."""
    filters = np.random.default_rng(0).normal(size=(FILTERS, 1, 3, 3)).astype(np.float32)
    features = _graph(filters, None, None)
    (seen,) = InferenceSession(features).run(["features"], {"image": images[:TRAIN]})
    ones = np.ones((len(seen), 1), np.float32)
    x = np.concatenate([seen, ones], 1).astype(np.float64)
    targets = np.eye(10)[labels[:TRAIN]]
    # ridge regression: w = (x'x + r)^-1 x'y
    w = np.linalg.solve(x.T @ x + 2.0 * np.eye(x.shape[1]), x.T @ targets).astype(np.float32)
    return _graph(filters, w[:-1], w[-1])


def _graph(filters: Array, weight: Array | None, bias: Array | None) -> ir.Model:
    op = OpBuilder(name="digits")
    image = op.input("image", "float32", ("batch", 1, 8, 8))
    maps = op.Relu(op.Conv(image, op.initializer("filters", filters), pads=[1, 1, 1, 1]))
    features = op.Flatten(op.MaxPool(maps, kernel_shape=[2, 2], strides=[2, 2]))
    if weight is None or bias is None:
        return op.model(features=features)
    scores = op.Gemm(features, op.initializer("weight", weight), op.initializer("bias", bias))
    return op.model(probabilities=op.Softmax(op.Mul(scores, 8.0), axis=-1))
