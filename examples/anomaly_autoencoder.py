"""Find anomalies with an autoencoder: what it reconstructs badly is unlike its training data.

python examples/anomaly_autoencoder.py

The autoencoder learns to compress images of digits to 8 numbers and back. It sees no zero, and no
labels at all: the target of a reconstruction is the image itself. Among new digits, zeros then
stand out by their reconstruction error. An AUC of 100 % means that every zero has a larger error
than any other digit; 50 % is chance.
"""

from __future__ import annotations

import numpy as np

import onward
from onward.runner.digits import TRAIN, load_digits

UNSEEN = 0


def main() -> None:
    images, labels = load_digits()
    pixels = images.reshape(-1, 64)
    usual = labels[:TRAIN] != UNSEEN
    network = onward.new_model("autoencoder", features=64, hidden=(64, 32), code=8)
    run = onward.train(
        network, {"x": pixels[:TRAIN][usual]}, epochs=20, batch_size=16, learning_rate=3e-3
    )
    print(
        f"trained on {usual.sum()} digits, no {UNSEEN} among them; "
        f"loss {run.metrics['val_loss']:.4f}"
    )

    new, truth = pixels[TRAIN:], labels[TRAIN:]
    [again] = onward.InferenceSession(run.model).run(None, {"x": new})
    errors = np.square(again - new).mean(1)
    for digit in range(10):
        mean = errors[truth == digit].mean()
        print(f"  {digit}: {mean:.4f} {'#' * round(float(mean) * 1000)}")
    print(f"AUC of the error, {UNSEEN} against the others: {auc(errors, truth == UNSEEN):.1%}")


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs, one positive and one not, in which the positive has the larger score."""
    pairs = scores[positive][:, None] - scores[~positive][None]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


if __name__ == "__main__":
    main()
