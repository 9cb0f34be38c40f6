"""What the training loop adds to a step of its session, as a number of Python calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import onward
from onward.graph.files import save
from onward.runner.architectures.new_model import new_model
from onward.runner.callback import Callback
from onward.sessions.training.session import TrainingSession

BEGIN, END = 80, 112  # steps of the second epoch, whose rows are kept in memory
OF_LOOP, OF_SESSION = 14, 70  # on stock onnxruntime; the callback that counts is one


class CallCount(Callback):
    """Counts the Python functions that are called between two steps, and those of `step` alone."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step, self._in_session = step.__code__, False
        self.loop = self.session = 0

    def on_step(self, run: Any, step: Any) -> None:
        if step.number in (BEGIN, END):
            sys.setprofile(self._count if step.number == BEGIN else None)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code is self._step and event in ("call", "return"):
            self._in_session = event == "call"
        if event == "call":
            self.session += self._in_session
            self.loop += not self._in_session


def test_the_loop_adds_few_calls_to_a_step(tmp_path: Path) -> None:
    save(new_model("mlp", features=4, hidden=(8,), classes=3), tmp_path / "mlp.onnx")
    rng = np.random.default_rng(0)
    data = rng.normal(size=(128, 4)).astype(np.float32), rng.integers(0, 3, 128)
    count = CallCount(TrainingSession.step.__wrapped__)  # type: ignore[attr-defined]
    quiet = {"validation_split": 0.0, "log_every": 1000, "save_every": 1000}
    onward.train(
        tmp_path / "mlp.onnx", data, batch_size=2, epochs=2, callbacks=[count], **quiet,
        runs=str(tmp_path / "runs"),
    )  # fmt: skip
    steps = END - BEGIN
    assert count.loop / steps <= OF_LOOP
    assert count.session / steps <= OF_SESSION
