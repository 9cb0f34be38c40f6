"""The API loads at most numpy, onnxruntime and safetensors."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import onward.training.api as orttraining
from tests.training.api.made import Folder

ALLOWED = {"numpy", "onnxruntime", "safetensors", "onward"}
TRAINING = """
    import sys
    started = set(sys.modules)  # a Python may load modules of its environment by itself
    import numpy as np
    from onward.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
    folder = sys.argv[1]
    state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
    model = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
    optimizer = Optimizer(f"{folder}/optimizer_model.onnx", model)
    scheduler = LinearLRScheduler(optimizer, 1, 3, 0.1)
    x, labels = np.ones((2, 4), np.float32), np.array([0, 1])
    for _ in range(3):
        model.train()
        model(x, labels)
        optimizer.step()
        model.lazy_reset_grad()
        scheduler.step()
    model.eval()
    model(x, labels)
    state.properties["epoch"] = 1
    CheckpointState.save_checkpoint(state, sys.argv[2], include_optimizer_state=True)
    CheckpointState.load_checkpoint(sys.argv[2])
    for name, module in sorted(sys.modules.items()):
        if name not in started and "site-packages" in (getattr(module, "__file__", None) or ""):
            print(name.partition(".")[0])
"""


def test_training_loads_only_numpy_onnxruntime_and_safetensors(whole: Folder, tmp_path) -> None:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(TRAINING)]
    command += [str(whole.path), str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= ALLOWED, done.stdout


def test_names_match_the_peer() -> None:
    for name in ("CheckpointState", "Module", "Optimizer", "LinearLRScheduler"):
        assert getattr(orttraining, name).__name__ == name and name in dir(orttraining)
    assert orttraining.module.Module is orttraining.Module
    assert orttraining.optimizer.Optimizer is orttraining.Optimizer
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = orttraining.Trainer
