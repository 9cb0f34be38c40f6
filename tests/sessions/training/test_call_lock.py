"""Turns: several threads in one session, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

FEEDS = batches(1)[0]


def session(**options: Any) -> TrainingSession:
    return TrainingSession(mlp(dropout=0.5), CrossEntropy(), AdamW(lr=0.02), options)


class Watched(Mapping[str, Any]):
    """Feeds that look, whenever they are read, whether another thread could come in."""

    def __init__(self, one: TrainingSession, feeds: Mapping[str, Any]) -> None:
        self._one, self._feeds = one, feeds
        self.seen: list[bool] = []

    def __getitem__(self, name: str) -> Any:
        return self._feeds[name]

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[str]:
        with ThreadPoolExecutor(1) as other:
            self.seen.append(other.submit(free, self._one).result())
        return iter(self._feeds)


def free(one: TrainingSession) -> bool:
    """Whether this thread need not wait for its turn."""
    got = one._lock.acquire(blocking=False)
    if got:
        one._lock.release()
    return got


@pytest.mark.parametrize("method", ["step", "evaluate", "predict", "run_forward"])
def test_the_lock_is_held_while_feeds_are_read(method: str) -> None:
    one = session()
    feeds = Watched(one, FEEDS if method != "predict" else {"x": FEEDS["x"]})
    getattr(one, method)(feeds)
    assert feeds.seen and not any(feeds.seen)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(free, one).result()


class Counting:
    """A lock that counts how often it was taken."""

    def __init__(self) -> None:
        self.taken, self.inside = 0, 0

    def __enter__(self) -> None:
        self.taken, self.inside = self.taken + 1, self.inside + 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


CALLS: dict[str, Callable[[TrainingSession, Path], Any]] = {
    "run_backward": lambda one, _: one.run_backward(),
    "update_weights": lambda one, _: (one.run_backward(), one.update_weights()),
    "get_gradients": lambda one, _: one.get_gradients(),
    "clear_gradients": lambda one, _: one.clear_gradients(),
    "gradient_norm": lambda one, _: one.gradient_norm,
    "set_learning_rate": lambda one, _: one.set_learning_rate(0.1),
    "set_parameters": lambda one, _: one.set_parameters({"b1": np.zeros(16)}),
    "save": lambda one, folder: one.save(folder / "new"),
    "checkpoint": lambda one, _: one.checkpoint(),
    "load": lambda one, folder: one.load(folder / "saved"),
    "restore": lambda one, _: one.restore(*one.checkpoint()),
    "export": lambda one, folder: one.export(folder / "m.onnx"),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_holds_the_lock(call: str, tmp_path: Path) -> None:
    one = session()
    one.save(tmp_path / "saved")
    one.run_forward(FEEDS)
    lock = Counting()
    one._lock = lock  # type: ignore[assignment]
    CALLS[call](one, tmp_path)
    assert lock.taken >= (2 if call in ("update_weights", "save", "load", "restore") else 1)
    assert lock.inside == 0


def test_a_call_that_fails_releases_the_lock() -> None:
    one = session()
    with pytest.raises(ValueError, match="feeds must be a dictionary"):
        one.step(None)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(free, one).result()


def test_steps_of_four_threads_are_as_many_in_a_row() -> None:
    shared, alone = session(), session()
    begin = threading.Barrier(4)

    def work(_: int) -> None:
        begin.wait()
        for _ in range(25):
            shared.step(FEEDS)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for _ in range(100):
        alone.step(FEEDS)
    assert shared.steps == 100
    for name, parameter in alone.parameters.items():
        np.testing.assert_array_equal(shared.parameters[name], parameter)
