"""Saliency: the gradient of a digit's probability with respect to the image.

python examples/saliency.py

A classifier is trained for a moment and extended with the gradient of its output. The result is a
model of standard ONNX operators, which any runtime can run, on a phone or in a browser.
"""

from __future__ import annotations

import numpy as np

import onward
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.runner.digits import TRAIN, batches, build_network, load_digits

SHADES = " .:-=+*#%@"


def main() -> None:
    images, labels = load_digits()
    session = onward.TrainingSession(build_network(), CrossEntropy(output="scores"), AdamW(lr=3e-3))
    for epoch in range(4):
        for feeds in batches(images[:TRAIN], labels[:TRAIN], 32, seed=epoch):
            session.step(feeds)
    session.export("digits.onnx", outputs=["probabilities"])

    # the model with the gradient of its output, weighted by a new input `pick`
    with_gradient = onward.gradient("digits.onnx", {"probabilities": "pick"}, "image")
    onward.save(with_gradient, "explained.onnx")
    explain = onward.InferenceSession("explained.onnx")

    image, label = images[1203:1204], int(labels[1203])
    pick = np.eye(10, dtype=np.float32)[[label]]  # one-hot: this digit
    probabilities, slope = explain.run(None, {"image": image, "pick": pick})
    print(f"a {label}, taken for a {probabilities.argmax()}")
    for pixels, slopes in zip(image[0, 0], np.abs(slope[0, 0]) / np.abs(slope).max()):
        print(to_text(pixels), "   ", to_text(slopes))


def to_text(row: np.ndarray) -> str:
    """Numbers in 0..1 as characters, two each."""
    return "".join(2 * SHADES[round(9 * float(number))] for number in row)


if __name__ == "__main__":
    main()
