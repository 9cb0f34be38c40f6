"""Denormals: flushed to zero during a run with the option, and restored after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.losses import CrossEntropy
from onward.optimizers import LAMB, AdamW
from onward.providers.options import SessionOptions
from onward.providers.ort import bound_session, denormals
from onward.providers.ort.bound_session import BoundSession
from onward.providers.ort.denormals import FLUSH, can_flush, flush_context, flush_denormals
from onward.sessions.training.session import TrainingSession
from onward.training.api import CheckpointState, Module, Optimizer
from tests.sessions.training.small import batches, mlp
from tests.training.api.made import batch, make

SMALL = np.full(300_000, 1e-38, np.float32)  # a quarter of it is a denormal


def quarter() -> bytes:
    op = onward.OpBuilder(opset=21)
    y = op.Mul(op.input("x", "float32", ("n",)), 0.25)
    data: bytes = ir.to_proto(op.model(y=y)).SerializeToString()
    return data


def quartered(options: SessionOptions) -> np.ndarray[Any, Any]:
    session = BoundSession(quarter(), options)
    y = np.empty_like(SMALL)
    session.bind_input("x", SMALL)
    session.bind_output("y", y)
    session.run()
    return y


@pytest.mark.skipif(not can_flush(), reason="this processor has no need of it")
def test_denormals_are_flushed_during_a_run() -> None:
    assert not quartered(SessionOptions(intra_op_num_threads=2, config_entries={FLUSH: "1"})).any()
    assert quartered(SessionOptions(intra_op_num_threads=2)).all()
    assert (SMALL * np.float32(0.25)).all()  # this thread's own arithmetic is as it was


@pytest.mark.skipif(not can_flush(), reason="this processor has no need of it")
def test_failed_run_restores_the_thread() -> None:
    flush = flush_context(SessionOptions(config_entries={FLUSH: "1"}))
    assert flush is not None
    with pytest.raises(ZeroDivisionError), flush:
        assert not (SMALL * np.float32(0.25)).any()
        raise ZeroDivisionError
    assert (SMALL * np.float32(0.25)).all()


def test_training_restores_the_thread() -> None:
    session = TrainingSession(mlp(), CrossEntropy(), AdamW())
    session.step(batches(1)[0])
    assert (SMALL * np.float32(0.25)).all()


class Flag:
    """Stands for the floating-point settings of a thread: counts how often it is set."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    def __enter__(self) -> None:
        self.entered += 1

    def __exit__(self, *error: object) -> None:
        self.left += 1


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[Flag]:
    """Denormals matter; the flag of each session that asks for them to be zero."""
    made: list[Flag] = []

    def flag(options: SessionOptions) -> Flag | None:
        if options.config_entries.get(FLUSH) != "1":
            return None
        made.append(Flag())
        return made[-1]

    monkeypatch.setattr(denormals, "can_flush", lambda: True)
    monkeypatch.setattr(bound_session, "flush_context", flag)
    return made


def count(flags: list[Flag]) -> int:
    assert all(flag.entered == flag.left for flag in flags)  # put back after each run
    return sum(flag.entered for flag in flags)


def test_every_graph_of_a_training_session_flushes_denormals(flags: list[Flag]) -> None:
    session = TrainingSession(mlp(), CrossEntropy(), AdamW())
    session.step(batches(1)[0])
    before = count(flags)
    session.step(batches(1)[0])
    assert count(flags) == before + 1  # the step is one run
    session.evaluate(batches(1)[0])
    assert count(flags) == before + 3  # opened, and run


@pytest.mark.parametrize("optimizer", [AdamW(), LAMB()], ids=["flat", "lists"])
def test_every_graph_of_a_device_flushes_denormals(
    flags: list[Flag], optimizer: Any, tmp_path: Path
) -> None:
    _, module, update = make(tmp_path, optimizer=optimizer).open()
    module(*batch())
    update.step()
    before = count(flags)
    module(*batch())
    assert count(flags) == before + 1
    update.step()
    assert count(flags) == before + 2
    module.eval()(*batch())
    assert count(flags) == before + 4


def test_device_keeps_the_users_setting(flags: list[Flag], tmp_path: Path) -> None:
    folder = make(tmp_path)
    state = CheckpointState.load_checkpoint(folder.checkpoint)
    options = SessionOptions(log_severity_level=4, config_entries={FLUSH: "0"})
    module = Module(folder.training, state, session_options=options)
    Optimizer(folder.optimizer, module)
    module(*batch())
    assert not flags


def test_flush_denormals_keeps_the_users_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denormals, "can_flush", lambda: True)
    assert flush_denormals(SessionOptions()).config_entries == {FLUSH: "1"}
    assert flush_denormals(SessionOptions(config_entries={FLUSH: "0"})).config_entries == {
        FLUSH: "0"
    }


def test_flush_denormals_sets_nothing_on_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denormals, "can_flush", lambda: False)
    options = SessionOptions()
    assert flush_denormals(options) is options
    assert flush_context(SessionOptions(config_entries={FLUSH: "1"})) is None
