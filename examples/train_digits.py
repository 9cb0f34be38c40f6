"""Train a model, save checkpoints, resume from them, export it: a first training script.

python examples/train_digits.py

Stop it with Ctrl-C and start it again: it resumes, and ends with the same weights, bit for bit. Any
ONNX model with float weights can replace `build_network`.
"""

from __future__ import annotations

import numpy as np

import onward
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.runner.digits import TRAIN, batches, build_network, load_digits

EPOCHS = 8


def main() -> None:
    images, labels = load_digits()
    session = onward.TrainingSession(build_network(), CrossEntropy(output="scores"), AdamW(lr=2e-3))
    checkpoints = onward.Checkpoints("digits-checkpoints", keep=2, keep_best=1, better="higher")
    found = checkpoints.latest()
    if found is not None:
        session.restore(found.tensors, found.properties)
        print(f"going on from step {session.steps}")

    held_out = {"image": images[TRAIN:], "labels": labels[TRAIN:]}
    for epoch in range(session.properties.get("epochs", 0), EPOCHS):
        for feeds in batches(images[:TRAIN], labels[:TRAIN], 32, seed=epoch):
            results = session.step(feeds)
        scores = session.evaluate(held_out)["scores"]
        right = float(np.mean(scores.argmax(1) == labels[TRAIN:]))
        print(f"epoch {epoch + 1}: loss {results['loss']:.3f}, {right:.1%} of the others right")
        session.properties["epochs"] = epoch + 1
        checkpoints.save(*session.checkpoint(), step=session.steps, metric=right)

    session.export("digits.onnx", outputs=["probabilities"])
    print("digits.onnx: the trained model, for any ONNX runtime")


if __name__ == "__main__":
    main()
