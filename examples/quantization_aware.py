"""Make a classifier of digits an int8 model: by rounding, then by training with the rounding.

python examples/quantization_aware.py

Rounding after training needs some images, to find the range of each layer's data, and no labels.
Quantization-aware training continues for some epochs with the same rounding in the graph, so that
the weights adapt to it. Both write QDQ models: int8 weights, QuantizeLinear and DequantizeLinear of
standard ONNX, which the stock onnxruntime runs. With one scale for each channel, 8 bits cost this
network next to nothing either way; the lower loss of the last is also that of three more epochs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

import onward
from onward.runner.digits import TRAIN, load_digits
from onward.runner.finetune.quantization_aware import export_quantized, make_quantization_aware


def main() -> None:
    images, labels = load_digits()
    data = {"image": images[:TRAIN], "label": labels[:TRAIN]}
    new, truth = images[TRAIN:], labels[TRAIN:]
    settings = {"target": "label", "validation_split": 0, "standardize": False, "crop": 1}

    network = onward.new_model("cnn", image=(1, 8, 8), channels=(16, 32), hidden=64)
    floats = onward.train(network, data, epochs=10, learning_rate=3e-3, **settings)

    calibration = [{"image": images[start : start + 50]} for start in range(0, 200, 50)]
    rounded = make_quantization_aware(onward.load(floats.model), calibration)
    onward.save(export_quantized(rounded, {}), "rounded.onnx")

    aware = onward.train(
        floats.model, data, quantization_aware=True, epochs=3, learning_rate=3e-4, **settings
    )
    for name, path in (
        ("float32", floats.model),
        ("int8, rounded", Path("rounded.onnx")),
        ("int8, trained with rounding", aware.model),
    ):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        [scores] = session.run(["scores"], {"image": new})
        right, loss = np.mean(scores.argmax(1) == truth), cross_entropy(scores, truth)
        size = path.stat().st_size
        print(f"{name:28} {right:.1%} of unseen digits, loss {loss:.3f}, {size / 1024:.0f} KiB")


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> float:
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return float(-logs[np.arange(len(labels)), labels].mean())


if __name__ == "__main__":
    main()
