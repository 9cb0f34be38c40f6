"""Train SqueezeNet, from random weights, on the handwritten digits that Onward carries.

python examples/squeezenet_digits.py

SqueezeNet 1.1 (Iandola et al. 2016) was made for photos of 227 pixels. Its three poolings would
leave nothing of 8 x 8 pixels, so the digits are enlarged to 16 x 16.
"""

from __future__ import annotations

import argparse

import onward
from onward.runner.digits import TRAIN, load_digits


def main(epochs: int) -> None:
    images, labels = load_digits()
    images = images.repeat(2, axis=2).repeat(2, axis=3)
    run = onward.train(
        onward.new_model("squeezenet", image=(1, 16, 16), classes=10, dropout=0.1),
        {"image": images[:TRAIN], "label": labels[:TRAIN]},
        validation={"image": images[TRAIN:], "label": labels[TRAIN:]},
        target="label",
        standardize=True,
        crop=1,
        epochs=epochs,
        learning_rate=1e-3,
        schedule="one_cycle",
        max_grad_norm=1.0,
        export="last",
    )
    print(f"{run.steps} steps in {run.seconds:.0f} s: {run.model}")
    print(f"held-out digits: {run.metrics['val_accuracy']:.1%} right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
