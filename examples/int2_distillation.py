"""Store a classifier of digits in 2 bits a weight, by rounding and by learning the rounding.

python examples/int2_distillation.py

With 2 bits, a weight is one of four numbers times a scale, and rounding each weight on its own
loses much. `tune_rounding` fits the integers and the scales of each layer to the layer's float
output, then lets the whole model learn the float model's outputs. It needs images, and no labels.
The result is standard ONNX: int2 weights behind DequantizeLinear (opset 25).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

import onward
from onward.compress import Calibration, Tune, export_quantized, quantize_aware, tune_rounding
from onward.runner.digits import TRAIN, load_digits


def main() -> None:
    images, labels = load_digits()
    data = {"image": images[:TRAIN], "label": labels[:TRAIN]}
    new, truth = images[TRAIN:], labels[TRAIN:]
    settings = {"target": "label", "validation_split": 0, "standardize": False, "crop": 1}

    network = onward.new_model("cnn", image=(1, 8, 8), channels=(16, 32), hidden=64)
    floats = onward.train(network, data, epochs=10, learning_rate=3e-3, **settings)
    model = onward.load(floats.model)

    rounded = export_quantized(quantize_aware(model, bits=2), {})
    inputs = onward.InferenceSession(model).get_inputs()
    calibration = Calibration({"image": images[:TRAIN]}, inputs, batch=50)
    learned = tune_rounding(model, rounded, calibration, Tune(steps=300))

    onward.save(rounded, "rounded.onnx")
    onward.save(learned, "learned.onnx")
    right = {}
    for name, path in (
        ("float32", Path(floats.model)),
        ("int2, rounded", Path("rounded.onnx")),
        ("int2, learned", Path("learned.onnx")),
    ):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        [scores] = session.run(["scores"], {"image": new})
        right[name], size = np.mean(scores.argmax(1) == truth), path.stat().st_size
        print(f"{name:14} {right[name]:.1%} of unseen digits, {size / 1024:.0f} KiB")
    assert right["int2, learned"] > right["int2, rounded"] + 0.1


if __name__ == "__main__":
    main()
