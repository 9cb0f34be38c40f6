"""Checkpoints of a run that are written in a thread, while it trains on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.checkpoints.folder import Checkpoints
from onward.errors import CheckpointError
from onward.runner import stored_states
from onward.runner.callback import Callback
from onward.runner.stored_states import FinishedSave, FirstProcessStates
from onward.runner.team import ALONE
from tests.runner.callbacks.fake_run import make_batch, make_session

Array = np.ndarray[Any, Any]


class SlowDisk:
    """Checkpoints in memory; a save waits until it may go on."""

    def __init__(self) -> None:
        self.saved: dict[int, tuple[dict[str, Array], dict[str, Any]]] = {}
        self.goes_on = threading.Event()

    def try_save(
        self, tensors: Any, properties: Any, step: int, metric: float | None = None
    ) -> Path | None:
        assert self.goes_on.wait(30)
        self.saved[step] = {n: np.array(x) for n, x in tensors.items()}, dict(properties)
        return Path(str(step))

    def latest(self) -> None: ...

    def best(self) -> None: ...


def test_a_save_has_the_state_of_its_moment() -> None:
    session, disk = make_session(), SlowDisk()
    session.properties["mine"] = {"list": [1]}
    tensors, _ = session.checkpoint()
    before = {name: np.array(tensor) for name, tensor in tensors.items()}
    save = FirstProcessStates(disk, ALONE).begin_save(session, 7, None)
    for number in range(3):
        session.step(make_batch(number).feeds)
    session.properties["mine"]["list"].append(2)
    assert not save.is_done
    disk.goes_on.set()
    assert save.wait() == (Path("7"),) and save.is_done
    kept, properties = disk.saved[7]
    assert all(np.array_equal(kept[name], tensor) for name, tensor in before.items())
    assert not np.array_equal(kept["w"], session.parameters["w"])
    assert "[1]" in str(properties) and "[1, 2]" not in str(properties)


def test_a_large_state_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_states, "_COPIED", 10)
    disk = SlowDisk()
    disk.goes_on.set()
    save = FirstProcessStates(disk, ALONE).begin_save(make_session(), 3, None)
    assert isinstance(save, FinishedSave) and save.wait() == (Path("3"),)


def test_a_held_state_is_written_with_the_next_one() -> None:
    session, disk = make_session(), SlowDisk()
    disk.goes_on.set()
    states = FirstProcessStates(disk, ALONE)
    assert states.hold(session, 2, 0.5) and not disk.saved
    before = np.array(session.parameters["w"])
    session.step(make_batch(0).feeds)
    assert states.begin_save(session, 3, None).wait() == (Path("2"), Path("3"))
    assert np.array_equal(disk.saved[2][0]["w"], before)
    assert states.begin_save(session, 4, None).wait() == (Path("4"),)


def test_a_held_state_of_the_same_step_is_written_once() -> None:
    session, disk = make_session(), SlowDisk()
    disk.goes_on.set()
    states = FirstProcessStates(disk, ALONE)
    assert states.hold(session, 2, 0.5)
    assert states.begin_save(session, 2, 0.5).wait() == (Path("2"),)
    assert states.begin_save(session, 3, None).wait() == (Path("3"),)


def test_a_held_state_that_cannot_be_written_is_kept() -> None:
    class FullDisk(SlowDisk):
        def try_save(self, tensors: Any, properties: Any, step: int, metric: Any = None) -> Any:
            return super().try_save(tensors, properties, step, metric) if self.is_free else None

        is_free = False

    session, disk = make_session(), FullDisk()
    disk.goes_on.set()
    states = FirstProcessStates(disk, ALONE)
    assert states.hold(session, 2, 0.5)
    assert states.begin_save(session, 3, None).wait() == ()
    disk.is_free = True
    assert states.begin_save(session, 4, None).wait() == (Path("2"), Path("4"))


def test_a_large_state_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_states, "_COPIED", 10)
    assert not FirstProcessStates(SlowDisk(), ALONE).hold(make_session(), 3, None)


class Recorded(Callback):
    """The steps at which the run was told of checkpoints."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def on_checkpoint(self, run: Any, path: Path) -> None:
        assert path.exists()
        self.files.append(path.name)


def train(folder: Path, epochs: int = 3, **settings: Any) -> Any:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(32, 4)).astype(np.float32), "y": rng.integers(0, 3, 32)}
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(scores=op.MatMul(x, op.initializer("w", np.zeros((4, 3), np.float32))))
    return onward.train(
        model, data, target="y", batch_size=8, epochs=epochs, validation_split=0.25,
        runs=str(folder), **{"save_every": 2, "name": "run", **settings},
    )  # fmt: skip


def test_every_checkpoint_is_told_once_it_is_written(tmp_path: Path) -> None:
    recorded = Recorded()
    train(tmp_path, callbacks=[recorded], keep=100)
    assert recorded.files and len(recorded.files) >= 4
    assert recorded.files == sorted(recorded.files)
    written = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {*recorded.files} <= written


def test_a_failed_save_is_logged_and_the_last_one_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = Checkpoints._save
    failed = []

    def save(self: Any, tensors: Any, properties: Any, step: int, metric: Any) -> Path:
        if len(failed) < 2:
            failed.append(step)
            raise CheckpointError("the disk is full")
        return written(self, tensors, properties, step, metric)

    monkeypatch.setattr(Checkpoints, "_save", save)
    recorded = Recorded()
    run = train(tmp_path, callbacks=[recorded], keep=100)
    assert len(failed) == 2 and "the disk is full" in caplog.text
    assert recorded.files and run.steps == 9
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest().step == 9


def test_a_run_whose_last_save_fails_tries_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, tried = Checkpoints._save, []

    def save(self: Any, tensors: Any, properties: Any, step: int, metric: Any) -> Path:
        tried.append(step)
        if tried.count(12) == 1 and step == 12:
            raise CheckpointError("the disk is full")
        return written(self, tensors, properties, step, metric)

    monkeypatch.setattr(Checkpoints, "_save", save)
    train(tmp_path, epochs=4, keep=100)
    assert tried.count(12) == 2
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest().step == 12


class Clock(Callback):
    """A clock on which each step takes some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_start(self, run: Any) -> None:
        run.clock = lambda: run.step * self.seconds
        run.saved_at = 0.0


def test_short_epochs_are_not_saved_each(tmp_path: Path) -> None:
    """An epoch has 3 steps, which take 12 seconds; the first is the best."""
    recorded = Recorded()
    run = train(
        tmp_path, 6, callbacks=[Clock(4), recorded], keep=100, save_every=None, learning_rate=0.01
    )
    steps = [int(name.split("-")[1].split(".")[0]) for name in recorded.files]
    assert steps == [3, 9, 18]  # the best with the one after 36 seconds, and the last
    best = Checkpoints(run.folder.checkpoints).best()
    assert best is not None and best.step == 3
    [scores] = onward.InferenceSession(run.model).run(None, {"x": np.eye(4, dtype=np.float32)})
    assert np.allclose(scores, best.tensors["w"])


def test_long_epochs_are_saved_each(tmp_path: Path) -> None:
    recorded = Recorded()
    train(tmp_path, 4, callbacks=[Clock(20), recorded], keep=100, save_every=None)
    assert len(recorded.files) == 4


@pytest.mark.parametrize("copied", [1 << 20, 10])
def test_best_weights_that_a_full_disk_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    copied: int,
) -> None:
    """Those in memory are exported; of states too large to be held, the last ones, with a word."""
    monkeypatch.setattr(stored_states, "_COPIED", copied)
    monkeypatch.setattr(Checkpoints, "try_save", lambda *_, **__: None)
    run = train(tmp_path, 6, save_every=None, learning_rate=0.01)
    last = train(tmp_path, 6, save_every=None, learning_rate=0.01, export="last", name="last")
    eye = np.eye(4, dtype=np.float32)
    scores = [onward.InferenceSession(each.model).run(None, {"x": eye})[0] for each in (run, last)]
    assert np.array_equal(*scores) == (copied == 10)
    said = "the best weights, of step 3, could not be saved: those of step 18 are exported"
    assert (said in caplog.text) == (copied == 10)
