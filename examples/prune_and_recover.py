"""Remove half of the channels of a classifier of digits, and recover what that costs.

python examples/prune_and_recover.py

Whole channels go, so that the model is smaller and faster on every engine. Afterwards it learns to
give the original's outputs, which needs images and no labels.
"""

from __future__ import annotations

import numpy as np

import onward
from onward.compress import prune
from onward.compress.quality import Run
from onward.runner.digits import TRAIN, load_digits


def main() -> None:
    images, labels = load_digits()
    data = {"image": images[:TRAIN], "label": labels[:TRAIN]}
    network = onward.new_model("cnn", image=(1, 8, 8), channels=(16, 32), hidden=64)
    trained = onward.train(
        network, data, target="label", epochs=6, learning_rate=3e-3, validation_split=0, crop=1
    )

    def accuracy(run: Run) -> float:
        (scores,) = run({"image": images[TRAIN:]}).values()
        return float((np.argmax(scores, axis=1) == labels[TRAIN:]).mean())

    unlabelled = {"image": images[:TRAIN]}
    settings = {"keep": 0.5, "importance": "activation", "metric": accuracy, "batch": 32}
    cut = prune(trained.model, unlabelled, **settings)
    print(f"cut:       {cut.after.quality.metric:.1%} of the digits are right")
    recovered = prune(trained.model, unlabelled, tune="4s", learning_rate=2e-3, **settings)
    print(f"recovered: {recovered.after.quality.metric:.1%}")
    print(recovered)
    recovered.save("pruned.onnx")


if __name__ == "__main__":
    main()
