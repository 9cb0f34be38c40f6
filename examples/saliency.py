"""Which pixels speak for a digit? The gradient of its score with respect to the image.

python examples/saliency.py

The classifier is extended with the gradient of its output and saved as plain ONNX: what is run here
by onnxruntime alone could be run by it on a phone or in a browser.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime

import onward
from onward.cli.digits import build_classifier, load_digits

SHADES = " .:-=+*#%@"


def main() -> None:
    images, labels = load_digits()
    model = build_classifier(images, labels)
    with_gradient = onward.gradient(model, {"probabilities": "cotangent"}, "image")
    session = onnxruntime.InferenceSession(ir.to_proto(with_gradient).SerializeToString())

    image, label = images[1203:1204], int(labels[1203])
    asked = np.eye(10, dtype=np.float32)[[label]]  # the score of this digit, and of no other
    probabilities, slope = session.run(None, {"image": image, "cotangent": asked})
    print(f"a {label}, taken for a {probabilities.argmax()}")
    for pixels, slopes in zip(image[0, 0], np.abs(slope[0, 0]) / np.abs(slope).max()):
        print(drawn(pixels), "   ", drawn(slopes))


def drawn(row: np.ndarray) -> str:
    """Numbers in 0..1 as characters, two each."""
    return "".join(2 * SHADES[round(9 * float(number))] for number in row)


if __name__ == "__main__":
    main()
