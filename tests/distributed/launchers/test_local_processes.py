"""Processes on this machine: what they get, how they fail, start again and end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onward.distributed.launchers.local_processes import run_local, worker_variables
from onward.errors import OptionError
from tests.distributed.launchers.started_workers import LIMIT, Workers, listen

ROOT = Path(__file__).parents[3]
Start = Callable[..., "Future[int]"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it sends signals of Linux")


@pytest.fixture
def workers() -> Iterator[Workers]:
    with listen() as found:
        yield found


@pytest.fixture
def start(workers: Workers) -> Iterator[Start]:
    """Call run_local in a thread."""
    with ThreadPoolExecutor(1) as pool:

        def submit(*arguments: str, nproc: int = 2, **settings: Any) -> Future[int]:
            variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "GIVEN": "a=b"}
            command = workers.command(*arguments)
            return pool.submit(run_local, command, nproc, variables=variables, **settings)

        yield submit


@pytest.mark.integration
def test_processes_get_ranks_variables_and_their_arguments_unchanged(
    workers: Workers, start: Start, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    odd = ["--nproc", "7", "a b", "$$x ${local_rank} $local_rank", '{"y": "\\n"}', "", "*", "é"]
    code = start(*odd, logs=tmp_path / "logs")
    found = workers.wait(2)
    for rank, worker in enumerate(found):
        told = worker.told
        assert told["arguments"] == odd and told["GIVEN"] == "a=b"
        assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == (f"{rank}", "2", f"{rank}")
        assert told["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert told["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
        worker.order("exit 0")
    assert code.result(LIMIT) == 0
    assert capfd.readouterr().out == "output of 0\n"
    [log] = (tmp_path / "logs").glob("*/attempt_0/1/stdout.log")
    assert log.read_text() == "output of 1\n"


@pytest.mark.integration
def test_a_failure_starts_all_again_and_the_last_one_is_reported(
    workers: Workers, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    code = start(max_restarts=1, show_all=True)
    workers.wait(2)[1].order("exit 4")
    first, second = workers.wait(2)
    assert first.told["TORCHELASTIC_RESTART_COUNT"] == "1"
    second.order("fail no such row")
    assert code.result(LIMIT) == 1
    printed = capfd.readouterr()
    warning, *_, last = printed.err.splitlines()
    assert re.match(r"warning: process 1 of 2 ended with exit code 4.*\(1 of 1 restarts\)", warning)
    assert last == "error: process 1 of 2 ended with exit code 1: ValueError: no such row"
    assert "[1] output of 1" in printed.out.splitlines()


@pytest.mark.integration
def test_processes_whose_run_others_train_do_not_start_again(
    workers: Workers, start: Start
) -> None:
    code = start(max_restarts=3)
    workers.wait(2)[1].order("exit 77")
    assert code.result(LIMIT) == 77


@pytest.mark.integration
def test_the_process_that_failed_first_is_named(
    workers: Workers, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    code = start(nproc=3)
    found = workers.wait(3)
    os.kill(found[2].told["pid"], signal.SIGKILL)
    found[1].order("lose")
    assert code.result(LIMIT) == 128 + signal.SIGKILL
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "error: process 2 of 3 was ended by SIGKILL: was the machine out of memory?"
    assert found[0].next_line() == "SIGTERM"


@pytest.mark.integration
def test_signals_are_passed_on_once_so_that_processes_may_save(workers: Workers) -> None:
    launch = ["onward", "launch", "--nproc", "2", *workers.command()[1:]]
    with subprocess.Popen([sys.executable, "-m", *launch], cwd=ROOT) as process:
        found = workers.wait(2)
        process.send_signal(signal.SIGINT)
        assert [worker.next_line() for worker in found] == ["SIGINT"] * 2
        assert process.wait(LIMIT) == 130
    assert [worker.next_line() for worker in found] == ["", ""]


@pytest.mark.integration
@pytest.mark.parametrize("victim", ["agent", "launcher"])
def test_no_process_outlives_its_agent_or_its_launcher(workers: Workers, victim: str) -> None:
    launch = ["onward", "launch", "--nproc", "2", *workers.command()[1:]]
    with subprocess.Popen([sys.executable, "-m", *launch], cwd=ROOT) as process:
        found = workers.wait(2)
        status = Path(f"/proc/{found[0].told['pid']}/status").read_text()
        [agent] = re.findall(r"^PPid:\s*(\d+)", status, re.M)
        os.kill(int(agent) if victim == "agent" else process.pid, signal.SIGKILL)
        last = "" if victim == "agent" else "SIGTERM"  # a killed launcher lets them save
        assert [worker.next_line() for worker in found] == [last, last]
        assert process.wait(LIMIT) == (137 if victim == "agent" else -signal.SIGKILL)


def test_threads_share_the_cores() -> None:
    assert "OMP_NUM_THREADS" not in worker_variables({}, 1)
    assert worker_variables({}, 1000)["OMP_NUM_THREADS"] == "1"
    assert worker_variables({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}, 2)[
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    ] == "0"  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nproc": 0}, "--nproc must be at least 1, not 0"),
        ({"command": []}, "there is no command to run"),
        ({"max_restarts": -1}, "--max-restarts must be at least 0"),
        ({"nodes": (2, 1)}, "--nodes takes N or MIN:MAX"),
        ({"nodes": (1, 2)}, "several machines need an address where they meet"),
        ({"nodes": (1, 2), "rendezvous": "a:b"}, "'a:b' is not HOST:PORT"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    given = {"command": ["true"], "nproc": 1, "variables": {}, **settings}
    with pytest.raises(OptionError, match=message):
        run_local(**given)
