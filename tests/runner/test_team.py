"""The runner's side of a team, with threads in place of processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.errors import DataError, DistributedError, PeerFailed, PeerLost
from onward.runner.team import ALONE, ending_together, run_and_ask, run_on_all, run_on_first

TIME_LIMIT = 60.0


class Room:
    """Where the threads of a team meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size
        self.failure: str | None = None


class ThreadTeam:
    """A team whose processes are threads of this one."""

    is_sharded = False
    parallel, backend, launch, local_size, restarts, bytes_sent = None, "threads", None, 1, 0, 0

    def __init__(self, room: Room, rank: int) -> None:
        self._room, self.rank, self.size = room, rank, room.size

    def gather(self, value: Any) -> list[Any]:
        self._room.values[self.rank] = value
        self._room.barrier.wait(TIME_LIMIT)
        found = list(self._room.values)
        self._room.barrier.wait(TIME_LIMIT)
        return found

    def largest(self, number: int) -> int:
        return max(self.gather(int(number)))

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]

    def open_checkpoints(self, folder: Path, *, keep: int, better: str) -> Any:
        return None

    def tell_failure(self, error: BaseException) -> None:
        self._room.failure = f"process {self.rank}: {error}"

    def find_failure(self) -> str | None:
        return self._room.failure


def run_team(function: Callable[[Any], Any], size: int = 3) -> list[Any]:
    """What `function(team)` returns or raises in each thread."""
    room, found = Room(size), [None] * size

    def call(rank: int) -> None:
        try:
            found[rank] = function(ThreadTeam(room, rank))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=call, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIME_LIMIT)
        assert not thread.is_alive()
    return found


def fail_on(*ranks: int) -> Callable[[Any], Any]:
    def compute(team: Any) -> int:
        if team.rank in ranks:
            raise DataError(f"row {team.rank} is broken")
        return int(team.rank)

    return compute


def test_one_process_calls_directly() -> None:
    assert run_on_first(ALONE, lambda: 3) == run_on_all(ALONE, lambda: 3) == 3
    assert run_and_ask(ALONE, lambda: 3, True) == (3, True)
    with pytest.raises(DataError, match="row 0 is broken"):
        run_on_all(ALONE, lambda: fail_on(0)(ALONE))


def test_all_get_the_result_of_the_first() -> None:
    assert run_team(lambda team: run_on_first(team, lambda: f"of {team.rank}")) == ["of 0"] * 3


def test_each_has_its_own_result() -> None:
    assert run_team(lambda team: run_on_all(team, lambda: team.rank * 2)) == [0, 2, 4]


def test_a_request_of_one_process_reaches_all() -> None:
    assert run_team(lambda team: run_and_ask(team, lambda: 1, team.rank == 2)) == [(1, True)] * 3


def test_an_error_of_the_first_process_is_its_own() -> None:
    first, *others = run_team(lambda team: run_on_all(team, lambda: fail_on(0, 2)(team)))
    assert isinstance(first, DataError) and str(first) == "row 0 is broken"
    for each in others:
        assert isinstance(each, PeerFailed)
        assert str(each) == "process 0 ended the run: row 0 is broken"


def test_the_first_process_reports_the_error_of_another() -> None:
    first, *others = run_team(lambda team: run_on_all(team, lambda: fail_on(2)(team)))
    assert type(first) is DistributedError and str(first) == "process 2: row 2 is broken"
    assert [type(each) for each in others] == [PeerFailed, PeerFailed]


@pytest.mark.parametrize("reported", [True, False])
def test_a_lost_process_is_explained(reported: bool) -> None:
    room = Room(2)
    if reported:
        with pytest.raises(ValueError, match="broken"), ending_together(ThreadTeam(room, 1)):
            raise ValueError("broken")
    for rank in range(2):
        expected = PeerFailed if reported or rank else PeerLost
        with pytest.raises(expected) as caught, ending_together(ThreadTeam(room, rank)):
            raise PeerLost("a process is gone")
        assert type(caught.value) is expected
        assert str(caught.value) == ("process 1: broken" if reported else "a process is gone")
