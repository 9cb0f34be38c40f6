"""WorkerInstance: answers, errors, deaths, restarts and quarantine of a model in a process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import FeedError, InvalidModel, ModelUnavailable, WorkerDied
from onward.serving import compiled_shapes
from onward.serving.requests import TensorSpec
from onward.serving.settings import ModelSettings
from onward.serving.worker_processes.worker_instance import (
    WorkerInstance,
    open_worker_instance,
    open_worker_instances,
)
from tests.serving.small_models import default_model, zip_map_model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")


def write_model(path: Path, factor: float = 2.0) -> Path:
    op = onward.OpBuilder()
    x, names = op.input("x", "float32", ("n", 4)), op.input("names", "string", ("n",))
    y = op.Mul(x, np.array(factor, np.float32))
    onward.save(op.model(y=y, same=op.Identity(names)), path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture
def instance(path: Path) -> Iterator[WorkerInstance]:
    made = open_worker_instance(path, ModelSettings(workers=1), "digits", "1")
    yield made
    made.close()


def feeds(value: float = 1.0, rows: int = 1) -> dict[str, Any]:
    return {"x": np.full((rows, 4), value, np.float32), "names": np.array(["é"] * rows, object)}


def check(instance: WorkerInstance, value: float = 3.0) -> None:
    found = instance.run(feeds(value), ["y"])["y"]
    np.testing.assert_array_equal(found, np.full((1, 4), 2 * value, np.float32))


def die_in_next_run(instance: WorkerInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = instance._worker
    ask = worker.ask

    def ask_dying(*arguments: Any, **options: Any) -> Any:
        os.kill(worker.pid, signal.SIGKILL)
        return ask(*arguments, **options)

    monkeypatch.setattr(worker, "ask", ask_dying)


def test_a_worker_answers_as_a_session(instance: WorkerInstance) -> None:
    assert instance.inputs == [
        TensorSpec("x", "FP32", (-1, 4), ("n", "")),
        TensorSpec("names", "BYTES", (-1,), ("n",)),
    ]
    assert [each.name for each in instance.outputs] == ["y", "same"]
    first = instance.run(feeds(1.5, rows=100_000))
    second = instance.run(feeds(-1.0, rows=2))
    assert (first["y"] == 3.0).all() and first["y"].shape == (100_000, 4)  # not overwritten
    assert second["same"].tolist() == ["é", "é"]
    assert list(instance.run(feeds(), ["same"])) == ["same"]
    with pytest.raises(FeedError, match="input 'x' takes shape"):
        instance.run({**feeds(), "x": np.zeros((1, 5), np.float32)})
    check(instance)


def test_initializers_that_are_inputs_too_are_optional(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(default_model())
    instance = open_worker_instance(path, ModelSettings(workers=1), "m", "1")
    try:
        assert [(each.name, each.has_default) for each in instance.inputs] == [
            ("x", False), ("w", True), ("factor", True),
        ]  # fmt: skip
        x, three = np.ones((1, 4), np.float32), np.array(3, np.float32)
        assert instance.run({"x": x})["y"].tolist() == [[24, 32]]
        assert instance.run({"x": x, "factor": three})["y"].tolist() == [[36, 48]]
    finally:
        instance.close()


def test_the_maps_of_a_classifier_are_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(zip_map_model(["b", "a"]))
    instance = open_worker_instance(path, ModelSettings(workers=1), "m", "1")
    try:
        x = np.array([[1, 2], [3, 4]], np.float32)
        assert instance.run({"x": x})["scores"].tolist() == [[2, 1], [4, 3]]
    finally:
        instance.close()


def test_a_dead_worker_is_replaced(
    instance: WorkerInstance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onward.serving")
    old = instance.pid
    die_in_next_run(instance, monkeypatch)
    with pytest.raises(WorkerDied, match="model 'digits' version 1 died of SIGKILL"):
        instance.run(feeds())
    check(instance)
    assert instance.pid not in (None, old)
    killed: Any = instance._worker
    os.kill(killed.pid, signal.SIGKILL)  # between two runs: no request is lost
    killed._process.wait()
    check(instance)
    messages = [record.getMessage() for record in caplog.records]
    assert "model 'digits' version 1 died of SIGKILL" in messages[0]
    assert sum("was started again" in each for each in messages) == 2


def test_a_model_that_keeps_dying_is_quarantined(
    instance: WorkerInstance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        check(instance)
        die_in_next_run(instance, monkeypatch)
        with pytest.raises(WorkerDied):
            instance.run(feeds())
    with pytest.raises(ModelUnavailable, match=r"'digits' is quarantined.*SIGKILL[^\n]*\nfix it"):
        instance.run(feeds())
    assert [each.levelname for each in caplog.records if "quarantined" in each.message] == ["ERROR"]


def test_a_process_that_is_stopped_is_replaced(path: Path) -> None:
    instance = open_worker_instance(path, ModelSettings(workers=1, stuck_after=1.0), "m", "1")
    try:
        assert instance.pid is not None
        os.kill(instance.pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match="took longer than 1 s; its process was ended"):
            instance.run(feeds())
        check(instance)
    finally:
        instance.close()


def test_a_process_that_may_compile_has_more_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_shapes, "_COMPILING", {"CPUExecutionProvider"})  # it stands in
    instance = open_worker_instance(path, ModelSettings(workers=1, stuck_after=0.5), "m", "1")
    pid = instance.pid
    assert pid is not None
    reports: list[str] = []

    class GoOn(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(record.getMessage())
            os.kill(pid, signal.SIGCONT)

    log, handler = logging.getLogger("onward.serving"), GoOn()
    log.addHandler(handler)
    try:
        os.kill(pid, signal.SIGSTOP)
        check(instance)
        assert instance.pid == pid
        [report] = reports
        assert "a run has not ended after 0.5 s: its engine may compile for these" in report
        assert report.endswith("its process is not ended before 6 s")
        log.removeHandler(handler)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match=r"took longer than 0\.5 s"):  # the same shapes again
            check(instance)
        assert not instance.is_compiling
    finally:
        log.removeHandler(handler)
        instance.close()


def test_a_changed_file_is_not_opened_as_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "model.onnx")
    instance = open_worker_instance(path, ModelSettings(workers=1), "digits", "1")
    die_in_next_run(instance, monkeypatch)
    write_model(path, 5.0)
    with pytest.raises(WorkerDied):
        instance.run(feeds())
    with pytest.raises(ModelUnavailable, match="file has changed since it was opened\nload the"):
        instance.run(feeds())
    instance.close()


def test_closing_ends_a_run_and_the_process(instance: WorkerInstance) -> None:
    pid, errors = instance.pid, list[Exception]()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    def run() -> None:
        try:
            instance.run(feeds())
        except (WorkerDied, ModelUnavailable) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    instance.close()
    thread.join(60)
    assert len(errors) == 1 and instance.pid is None
    with pytest.raises(ModelUnavailable, match="was closed"):
        instance.run(feeds())
    instance.close()


def test_workers_of_one_model_share_a_quarantine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = open_worker_instances(path, ModelSettings(workers=2), "digits", "1")
    assert len({each.pid for each in both}) == 2
    assert both[0]._quarantine is both[1]._quarantine
    for each in both:
        check(each)
        each.close()


def test_a_model_that_does_not_open_raises_its_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InvalidModel):
        open_worker_instances(path, ModelSettings(workers=2), "digits", "1")
