"""A script for onnxruntime.training, before and after the one-word change.

python examples/one_word.py

SCRIPT below is written for onnxruntime.training as its documentation teaches it: artifacts,
training loop, evaluation, checkpoint, export. With `onnxruntime.training` replaced by
`onward.training` it runs on the stock wheel of onnxruntime, on any machine that has one.
"""

from __future__ import annotations

import difflib
import os
import tempfile

SCRIPT = """
import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

# -- offline: a model, and the artifacts to train it with
rng = np.random.default_rng(0)
shapes = {"fc1.weight": (16, 4), "fc1.bias": (16,), "fc2.weight": (3, 16), "fc2.bias": (3,)}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["output"], transB=1),
    ],
    "classifier",
    [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["batch", 4])],
    [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["batch", 3])],
    [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) * 0.3, name)
        for name, shape in shapes.items()
    ],
)
onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
artifacts.generate_artifacts(
    onnx_model,
    requires_grad=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
    frozen_params=[],
    loss=artifacts.LossType.CrossEntropyLoss,
    optimizer=artifacts.OptimType.AdamW,
    artifact_directory="training_artifacts",
)

# -- on the device
state = CheckpointState.load_checkpoint("training_artifacts/checkpoint")
model = Module(
    "training_artifacts/training_model.onnx", state, "training_artifacts/eval_model.onnx"
)
optimizer = Optimizer("training_artifacts/optimizer_model.onnx", model)
scheduler = LinearLRScheduler(optimizer, 10, 300, 0.05)

x = rng.normal(size=(600, 4)).astype(np.float32)
y = x[:, :3].argmax(axis=1).astype(np.int64)
for epoch in range(5):
    model.train()
    losses = []
    for start in range(0, 500, 50):
        loss = model(x[start : start + 50], y[start : start + 50])
        optimizer.step()
        scheduler.step()
        model.lazy_reset_grad()
        losses.append(loss)
    model.eval()
    test_loss = model(x[500:], y[500:])
    print(f"epoch {epoch + 1}: train {sum(losses) / len(losses):.3f}, test {test_loss:.3f}")

state.properties["epoch"] = 5
CheckpointState.save_checkpoint(state, "checkpoint", include_optimizer_state=True)
print("fc2.bias", state.parameters["fc2.bias"].data.round(3))

model.export_model_for_inferencing("inference_model.onnx", ["output"])
session = ort.InferenceSession("inference_model.onnx", providers=["CPUExecutionProvider"])
(scores,) = session.run(["output"], {"input": x[500:]})
print(f"exported model: {(scores.argmax(axis=1) == y[500:]).mean():.0%} right")
"""


def main() -> None:
    after = SCRIPT.replace("onnxruntime.training", "onward.training")
    for line in difflib.unified_diff(
        SCRIPT.splitlines(), after.splitlines(), "before", "after", n=0
    ):
        print(line.rstrip())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(after, "after", "exec"), {"__name__": "__main__"})
        os.chdir(os.path.dirname(folder))


if __name__ == "__main__":
    main()
