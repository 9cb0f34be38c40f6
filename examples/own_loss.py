"""A custom loss: as a function over the graph, as an ONNX model, as an output of the model.

python examples/own_loss.py

Three ways to write the same focal loss, which weights misclassified images most: the cross entropy
of each image, times (1 - p)^2 where p is the probability of the right digit. Its gradient is
derived automatically. All three train to the same weights.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir

import onward
from onward.graph.graph_ops import extend
from onward.losses import Graph, Output
from onward.optimizers import AdamW
from onward.runner.digits import TRAIN, batches, build_network, load_digits


def focal(op, values):
    """The mean of (1 - p)^2 * -log p, in operators of ONNX; `op.Name` takes ONNX's attributes."""
    scores = values["scores"]  # (batch, 10)
    labels = op.input("labels", "int64", ("batch",))  # a new input of the training step
    each = op.SoftmaxCrossEntropyLoss(scores, labels, reduction="none")  # -log p
    missing = op.Sub(1.0, op.Exp(op.Neg(each)))
    return op.ReduceMean(op.Mul(op.Mul(missing, missing), each), keepdims=0)


# Inputs that are named like values of the trained model read those; the others are new inputs.
AS_A_MODEL = """
    <ir_version: 10, opset_import: ["" : 21]>
    focal (float[batch, 10] scores, int64[batch] labels) => (float loss) {
        each = SoftmaxCrossEntropyLoss <reduction = "none"> (scores, labels)
        opposite = Neg(each)
        p = Exp(opposite)
        one = Constant <value_float = 1.0> ()
        missing = Sub(one, p)
        squared = Mul(missing, missing)
        weighed = Mul(squared, each)
        loss = ReduceMean <keepdims = 0> (weighed)
    }"""


def with_the_loss_inside() -> ir.Model:
    """The network with the loss as an output and the labels as an input, as some exporters do."""
    model = build_network()
    op = extend(model)
    loss = op.Identity(focal(op, {value.name: value for value in model.graph.outputs}))
    loss.name = "focal"
    model.graph.outputs.append(loss)
    return model


def main() -> None:
    images, labels = load_digits()
    ways = {
        "a function": (build_network(), Graph(focal)),
        "an ONNX model": (build_network(), Graph(onnx.parser.parse_model(AS_A_MODEL))),
        "an output of the model": (with_the_loss_inside(), Output("focal")),
    }
    finals = []
    for words, (model, loss) in ways.items():
        session = onward.TrainingSession(model, loss, AdamW(lr=3e-3))
        losses = [
            float(session.step(feeds)["loss"])
            for feeds in batches(images[:TRAIN], labels[:TRAIN], 32, seed=0)
        ]
        scores = session.predict(feeds_of(session, images[TRAIN:], labels[TRAIN:]))["scores"]
        share = np.mean(scores.argmax(1) == labels[TRAIN:])
        print(f"{words:24} loss {losses[0]:.3f} -> {losses[-1]:.3f}, {share:.1%} right")
        finals.append(losses[-1])
    assert np.ptp(finals) < 1e-3, finals


def feeds_of(session: onward.TrainingSession, images: np.ndarray, labels: np.ndarray) -> dict:
    """The feeds of the model: a model with its loss inside takes the labels, too."""
    given = {"image": images, "labels": labels}
    return {name: given[name] for name in session.program.inputs}


if __name__ == "__main__":
    main()
