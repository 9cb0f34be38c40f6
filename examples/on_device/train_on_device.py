"""Personalise a model on a device, from artifacts, with only numpy, onnxruntime and safetensors.

python examples/on_device/make_artifacts.py
python examples/on_device/train_on_device.py

The first command is the server's: it makes a folder of artifacts (training, evaluation and
optimizer model, checkpoint), and digits in the owner's handwriting. The second is the device's: it
learns how the owner writes from 200 of them, and saves the result as a checkpoint. No onnx, no
torch: the graphs were made on the server, and the stock onnxruntime runs them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from onward.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

FOLDER = Path("on_device_artifacts")
EXAMPLES = 200  # labelled digits to train on; the others are test data
EPOCHS, SIZE = 15, 20


def main() -> None:
    data = np.load(FOLDER / "handwriting.npz")
    images, labels = data["images"], data["labels"]
    mine, others = slice(0, EXAMPLES), slice(EXAMPLES, None)

    state = CheckpointState.load_checkpoint(FOLDER / "checkpoint")
    model = Module(FOLDER / "training_model.onnx", state, FOLDER / "eval_model.onnx")
    optimizer = Optimizer(FOLDER / "optimizer_model.onnx", model)
    print(f"before: {accuracy(model, images[others], labels[others]):.1%} of unseen digits right")

    steps = EPOCHS * (EXAMPLES // SIZE)
    scheduler = LinearLRScheduler(optimizer, steps // 10, steps, 0.01)
    rng = np.random.default_rng(0)
    model.train()
    for epoch in range(EPOCHS):
        losses = []
        for batch in np.array_split(rng.permutation(EXAMPLES), EXAMPLES // SIZE):
            loss, _ = model(images[mine][batch], labels[mine][batch])
            losses.append(loss)
            optimizer.step()
            scheduler.step()
            model.lazy_reset_grad()
        state.properties["epoch"] = epoch + 1
    CheckpointState.save_checkpoint(state, FOLDER / "mine", include_optimizer_state=True)

    right, loss = accuracy(model, images[others], labels[others]), np.mean(losses)
    print(f"after:  {right:.1%}, loss {loss:.3f}")
    heavy = sorted({"onnx", "onnx_ir", "onnxscript", "torch"} & sys.modules.keys())
    print(f"loaded in addition to numpy and onnxruntime: {', '.join(heavy) or 'nothing heavy'}")


def accuracy(model: Module, images: np.ndarray, labels: np.ndarray) -> float:
    model.eval()
    _, scores = model(images, labels)
    model.train()
    return float((scores.argmax(axis=-1) == labels).mean())


if __name__ == "__main__":
    main()
