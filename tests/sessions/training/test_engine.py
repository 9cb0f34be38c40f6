"""Engines leave onnxruntime as they found it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import onward
from tests.training.api.made import classifier, make

PROGRAM = """
    import sys
    import numpy as np
    import onnxruntime
    import onward
    from onward.training.api import CheckpointState, Module, Optimizer

    folder = sys.argv[1]
    x, labels = np.ones((2, 4), np.float32), np.array([0, 1])

    model, loss = onward.load(f"{folder}/classifier.onnx"), onward.losses.CrossEntropy()
    session = onward.TrainingSession(model, loss, onward.optimizers.AdamW())
    session.step({"input": x, "labels": labels})

    state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
    module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
    optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
    module(x, labels)
    optimizer.step()
    module.export_model_for_inferencing(f"{folder}/inference.onnx", ["output"])

    for name in ("classifier", "inference"):
        plain = onnxruntime.InferenceSession(f"{folder}/{name}.onnx")
        [output] = plain.run(None, {"input": x})
        assert output.shape == (2, 3) and np.isfinite(output).all()
    print("ran")
"""


def test_a_plain_session_of_onnxruntime_runs_beside_those_that_train(tmp_path: Path) -> None:
    onward.save(classifier(), tmp_path / "classifier.onnx")
    make(tmp_path)
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
