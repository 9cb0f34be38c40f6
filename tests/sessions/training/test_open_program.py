"""Engines leave onnxruntime as they found it."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import onward
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from tests.sessions.training.small import batches, mlp
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


@pytest.mark.integration
def test_a_plain_onnxruntime_session_runs_while_others_train(tmp_path: Path) -> None:
    onward.save(classifier(), tmp_path / "classifier.onnx")
    make(tmp_path)
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "CPUExecutionProvider"])
def test_a_session_that_trains_does_not_mute_the_log(provider: str) -> None:
    before = logging.getLogger("onward").level
    session = onward.TrainingSession(mlp(), CrossEntropy(), SGD(), providers=[provider])
    session.step(batches(1)[0])
    assert logging.getLogger("onward").level == before
