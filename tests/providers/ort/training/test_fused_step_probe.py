"""The fused-step probe passes here, and detects an engine that trains on old gradients."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.providers.ort.bound_session import BoundSession
from onward.providers.ort.training import fused_step_probe
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.ort.training.fused_step_probe_graph import probe_graph
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import compile_training
from tests.sessions.training.small import batches, mlp


class Copying(BoundSession):
    """An engine that writes results elsewhere first, and to their places when all is done."""

    def bind_output(self, name: str, array: Any) -> None:
        self.places = {**getattr(self, "places", {}), name: (array, np.empty_like(array))}
        super().bind_output(name, self.places[name][1])

    def run(self, wanted: Iterable[str] | None = None) -> list[Any]:
        found = super().run(wanted)
        for place, made in self.places.values():
            place[...] = made
        return found


class Hasty(BoundSession):
    """An engine that says it was finite whatever it saw."""

    def run(self, wanted: Iterable[str] | None = None) -> list[Any]:
        found = super().run(wanted)
        self._written["onward.updated"][...] = True
        return found


def test_installed_onnxruntime_passes_the_probe() -> None:
    assert fused_step_probe.is_sound(probe_graph())


@pytest.mark.parametrize("engine", [Copying, Hasty])
def test_wrong_engine_is_detected(
    engine: type[BoundSession], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused_step_probe, "BoundSession", engine)
    with caplog.at_level("WARNING", "onward"):
        assert not fused_step_probe.is_sound.__wrapped__(probe_graph())
    assert "does not run fused training steps correctly" in caplog.text


def test_probe_that_does_not_open_is_not_sound() -> None:
    assert not fused_step_probe.is_sound.__wrapped__(b"no model")


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=str)
def test_gradients_and_updates_run_separately_if_the_probe_fails(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (mlp(), CrossEntropy(), AdamW(lr=0.02), options)
    one, two = TrainingSession(*given), TrainingSession(*given)
    with monkeypatch.context() as patched:
        patched.setattr("onward.sessions.training.open_program.is_sound", lambda _: False)
        for feeds in batches(6):
            one.step(feeds)
    for feeds in batches(6):
        two.step(feeds)
    assert list(one._engine._feeds) == ["train"]
    for name, tensor in one.parameters.items():
        np.testing.assert_allclose(tensor, two.parameters[name], atol=1e-6)


def test_provider_with_its_own_memory_is_not_probed(tmp_path: Path) -> None:
    program = compile_training(mlp(), CrossEntropy(), AdamW(lr=0.02)).save(tmp_path / "program")
    one = TrainingSession(program, providers=["TorchExecutionProvider", "CPUExecutionProvider"])
    one.step(batches(1)[0])
    assert isinstance(one._engine, OrtTraining) and list(one._engine._feeds) == ["train"]
