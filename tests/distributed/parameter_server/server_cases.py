"""A small model, its batches, and sessions with one thread, for tests of the parameter server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import onward
from onward.distributed.parameter_server.parameter_server import ParameterServer
from onward.sessions.training.training_program import TrainingProgram, compile_training
from tests.sessions.training.small import batches, mlp

TOKEN = "a token of the tests"
GUARD = 60.0  # seconds, against a test that hangs

Array = np.ndarray[Any, Any]


def make_program(optimizer: Any = None, dropout: float = 0.0, **options: Any) -> TrainingProgram:
    chosen = optimizer or onward.optimizers.SGD(lr=0.5)
    loss = onward.losses.CrossEntropy()
    return compile_training(mlp(dropout=dropout), loss, chosen, options or None)


def open_session(program: TrainingProgram | None = None) -> onward.TrainingSession:
    options = onward.SessionOptions()
    options.intra_op_num_threads = 1
    return onward.TrainingSession(program or make_program(), sess_options=options)


def parameters_of(session: onward.TrainingSession) -> dict[str, Array]:
    return {name: np.array(tensor) for name, tensor in session.parameters.items()}


def loss_of(session: onward.TrainingSession) -> float:
    return float(session.evaluate(batches(1, size=200, seed=99)[0])["loss"])


@contextmanager
def in_threads(*functions: Any) -> Iterator[None]:
    """Run functions in threads, wait for them at the end, and raise the first error."""
    errors: list[BaseException] = []

    def call(function: Any) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(each,), daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(GUARD)
    assert not any(thread.is_alive() for thread in threads), "a worker still runs"
    for error in errors:
        raise error


def run_worker_process(address: str, token: str, seed: int, count: int, started: Any) -> None:
    """The body of a worker process: train on `count` batches; tell when the first is done."""
    from onward.distributed.parameter_server.server_worker import ParameterServerWorker

    with ParameterServerWorker(open_session(), address, token=token) as worker:
        for feeds in batches(count, seed=seed):
            worker.step(feeds)
            started.set()


def session_of(server: ParameterServer) -> onward.TrainingSession:
    """The session that makes the updates of a server."""
    return server._updates.session
