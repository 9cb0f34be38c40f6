"""StagedWork: an asynchronous Work of several collectives, written as one generator."""

from __future__ import annotations

from collections.abc import Iterator


class StagedWork:
    """A Work: what comes before the `yield` of a function runs at once, the rest in `wait`.

    Collectives must start in the same order on all processes. Those before the `yield` start in
    the order of calls, those after it in the order of waits, so all processes must wait for their
    works in the same order, too.

    >>> def send():
    ...     print("send")
    ...     yield
    ...     print("receive")
    >>> work = StagedWork(send())
    send
    >>> work.wait()
    receive
    """

    def __init__(self, stages: Iterator[None]) -> None:
        self._stages = stages
        next(stages, None)

    def wait(self) -> None:
        for _ in self._stages:
            pass
