"""Train SqueezeNet, from random weights, on the handwritten digits that Onward carries.

python examples/squeezenet_digits.py

SqueezeNet 1.1 (Iandola et al. 2016) was made for photos of 227 pixels. Its three poolings would
leave nothing of 8 x 8 pixels, so the digits are enlarged to 16 x 16. It reads 92.8 % of the digits
that are held out.
"""

from __future__ import annotations

import argparse

import numpy as np
import onnx_ir as ir

import onward
from onward.runner.digits import TRAIN, load_digits

BIAS = "classifier.1.bias"


def main(epochs: int) -> None:
    images, labels = load_digits()
    images = images.repeat(2, axis=2).repeat(2, axis=3)
    model = onward.new_model("squeezenet", image=(1, 16, 16), classes=10, dropout=0.1)
    # it ends in a Relu: a class whose scores are below 0 at first would never learn
    model.graph.initializers[BIAS].const_value = ir.tensor(np.ones(10, np.float32), name=BIAS)
    run = onward.train(
        model,
        {"image": images[:TRAIN], "label": labels[:TRAIN]},
        validation={"image": images[TRAIN:], "label": labels[TRAIN:]},
        target="label",
        standardize=True,
        crop=1,
        epochs=epochs,
        batch_size=16,
        learning_rate=7e-4,
        schedule="one_cycle",
        max_grad_norm=1.0,
        export="last",
    )
    print(f"{run.steps} steps in {run.seconds:.0f} s: {run.model}")
    print(f"held-out digits: {run.metrics['val_accuracy']:.1%} right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    main(parser.parse_args().epochs)
