"""Team: the processes that train one run together, as the runner sees them.

    ALONE                       the team of a run in one process
    run_on_first(team, compute) the result of process 0, on all processes
    run_on_all(team, compute)   the result of each process; an error of one ends all of them
    run_and_ask(team, ...)      the same, and whether a process asks for something
    ending_together(team)       within it, the others learn why a process failed

A team of several processes is opened by a higher layer (`onward.distributed.join_team`). Every
process calls the methods of its team in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from onward.errors import DistributedError, OnwardError, PeerFailed, PeerLost

T = TypeVar("T")

_FAILED = 2  # above what a process asks for


class Team(Protocol):
    """The processes of a run."""

    @property
    def rank(self) -> int:
        """The number of this process; process 0 writes the files, and shows the run."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def local_size(self) -> int:
        """The processes of this machine, which share its cores."""
        ...

    @property
    def parallel(self) -> Any:
        """What a TrainingSession takes as `parallel`; None: this process trains by itself."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether each process has a part of the session's tensors: all of them read together."""
        ...

    @property
    def backend(self) -> str:
        """How processes talk to each other: "gloo"; empty for one process."""
        ...

    @property
    def launch(self) -> str | None:
        """The name of the launcher's job, which is the same when it starts processes again."""
        ...

    @property
    def restarts(self) -> int:
        """How often the launcher has started the processes again."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent through its team."""
        ...

    def largest(self, number: int) -> int:
        """The largest of the numbers that all processes give: a short message."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        ...

    def broadcast(self, value: Any) -> Any:
        """The value of process 0."""
        ...

    def open_checkpoints(
        self, folder: Path, *, keep: int, better: Literal["lower", "higher"]
    ) -> Any:
        """Checkpoints that all processes write together; None: only process 0 writes them.

        See StoredStates in `stored_states.py`.
        """
        ...

    def tell_failure(self, error: BaseException) -> None:
        """Say to the others why this process ends, as far as that is still possible."""
        ...

    def find_failure(self) -> str | None:
        """Why another process ended, if it could say so."""
        ...


class _OneProcess:
    """The team of a run in one process."""

    rank, size, local_size, restarts, bytes_sent = 0, 1, 1, 0, 0
    parallel: Any = None
    is_sharded = False
    backend = ""
    launch: str | None = None

    def largest(self, number: int) -> int:
        return number

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def open_checkpoints(
        self, folder: Path, *, keep: int, better: Literal["lower", "higher"]
    ) -> Any:
        return None

    def tell_failure(self, error: BaseException) -> None:
        pass

    def find_failure(self) -> str | None:
        return None


ALONE: Team = _OneProcess()


def run_on_first(team: Team, compute: Callable[[], T]) -> T:
    """The result of process 0, on all processes; the others only wait for it.

    >>> run_on_first(ALONE, lambda: 5)
    5
    """
    if team.size == 1:
        return compute()
    found = run_on_all(team, lambda: compute() if team.rank == 0 else None)
    result: T = team.broadcast(found)
    return result


def run_on_all(team: Team, compute: Callable[[], T]) -> T:
    """The result of each process; an error of one is raised on all, so that none waits for it.

    Process 0 raises the error itself, or one with its text, the others PeerFailed: one of them
    reports it. `compute` calls no method of the team.
    """
    return run_and_ask(team, compute, asks=False)[0]


def run_and_ask(team: Team, compute: Callable[[], T], asks: bool) -> tuple[T, bool]:
    """`run_on_all`, and whether a process asks for something, in the same short message."""
    if team.size == 1:
        return compute(), asks
    failure: Exception | None = None
    result: Any = None
    try:
        result = compute()
    except Exception as error:
        failure = error
    found = team.largest(_FAILED if failure is not None else int(asks))
    if found == _FAILED:
        _raise_first(team, failure)
    return result, bool(found)


def _raise_first(team: Team, failure: Exception | None) -> None:
    texts = team.gather(None if failure is None else _describe(failure))
    if team.rank == 0 and failure is not None:
        raise failure
    rank = next(rank for rank, text in enumerate(texts) if text is not None)
    if team.rank == 0:
        raise DistributedError(f"process {rank}: {texts[rank]}")
    raise PeerFailed(f"process {rank} ended the run: {texts[rank]}") from failure


@contextmanager
def ending_together(team: Team) -> Iterator[None]:
    """Within it, the others learn why this process fails, and a lost process is explained.

    The process that failed raises its own error; the others raise PeerFailed. Where a process was
    lost without a word (kill -9), process 0 raises PeerLost.
    """
    try:
        yield
    except PeerFailed:
        raise
    except PeerLost as error:
        found = team.find_failure()
        if found is not None:
            raise PeerFailed(found) from error
        if team.rank:
            raise PeerFailed(str(error)) from error
        raise
    except BaseException as error:
        team.tell_failure(error)
        raise


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, OnwardError) else f"{type(error).__name__}: {error}"
