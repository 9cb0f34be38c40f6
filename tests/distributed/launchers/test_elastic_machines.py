"""Machines that leave a run and join it again: two launchers on this machine stand in for them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.distributed.launchers.started_workers import LIMIT, Worker, listen

ROOT = Path(__file__).parents[3]
LAUNCH = """
import os, sys
from onward.distributed.launchers.local_processes import run_local
from onward.distributed.launchers.rendezvous import RendezvousTimes
times = RendezvousTimes(keep_alive=1, attempts=6, last_call=2)
sys.exit(run_local(sys.argv[2:], 1, variables=os.environ, nodes=(1, 2), rendezvous=sys.argv[1],
                   max_restarts=3, times=times))
"""
Machine = subprocess.Popen[bytes]
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it needs processes that end together"),
    pytest.mark.slow,  # it waits for machines that are gone
]


@pytest.fixture
def start_machine() -> Iterator[Callable[[list[str]], Machine]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as stack:

        def start(command: list[str]) -> Machine:
            words = [sys.executable, "-c", LAUNCH, endpoint, *command]
            machine = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
            stack.callback(machine.wait)
            stack.callback(machine.kill)
            return machine

        yield start


def launcher_of(worker: Worker) -> int:
    """The launcher of a worker: the parent of the agent that is its parent."""
    return parent_of(parent_of(worker.told["pid"]))


def parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"^PPid:\s*(\d+)", status, re.M)[0])


def test_a_machine_leaves_and_joins_again(
    start_machine: Callable[[list[str]], Machine],
) -> None:
    with listen() as workers:
        first = start_machine(workers.command())
        # the machine at which all meet comes first
        [alone] = workers.wait(1)
        assert alone.told["WORLD_SIZE"] == "1"
        second = start_machine(workers.command())
        both = workers.wait(2)
        assert [worker.told["WORLD_SIZE"] for worker in both] == ["2", "2"]
        assert alone.next_line() == "SIGTERM"  # stopped, to start again with the other

        # who is who must be known before one is killed
        [stays] = [worker for worker in both if launcher_of(worker) == first.pid]
        second.kill()
        stays.order("lose")
        [alone] = workers.wait(1)
        assert alone.told["WORLD_SIZE"] == "1"

        second = start_machine(workers.command())
        both = workers.wait(2)
        assert [worker.told["WORLD_SIZE"] for worker in both] == ["2", "2"]
        for worker in both:
            worker.order("exit 0")
        assert (first.wait(LIMIT), second.wait(LIMIT)) == (0, 0)
