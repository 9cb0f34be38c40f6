"""R10: a run goes from 4 processes to 3 and back to 4, and ends in the bits of an undisturbed one.

    python -m conformance.reliability.changing_processes

Four launchers (`onward launch --nproc 1 --nodes 3:4`) stand in for four machines that train one
run with logical shards, dropout, an average of the weights and shuffled data. The agent of one is
killed (kill -9), and its process with it; the others go on as three. Then a launcher starts again,
and the run goes on as four. The weights, and the numbers of every step and evaluation, must be
those of a run of four processes without a failure: no row is lost or repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onward
from conformance.reliability.interruptions import run_difference
from conformance.reliability.killed_workers import ROOT, worker_variables, write_files
from onward.runner.callback import Callback
from onward.runner.run_folder import RunFolder

STEPS = 60
GATES = {4: 17, 3: 38}  # by the number of processes: the step at which they wait for the change
LIMIT = 300.0  # seconds for each change; a guard
INTERRUPTED = 130  # the exit code of `onward train` after a signal


class WaitForChange(Callback):
    """Waits at a step until a machine was killed, or the launcher asks its process to stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_start(self, run: Any) -> None:
        if run.team.rank == 0:
            with (self._folder / "starts").open("a") as file:
                file.write(json.dumps({"processes": run.team.size, "step": run.step}) + "\n")

    def on_step(self, run: Any, step: Any) -> None:
        if step.number != GATES.get(run.team.size):
            return
        (self._folder / f"waits-{run.team.size}-{run.team.rank}").touch()
        ends = time.monotonic() + LIMIT
        while run.asked is None and time.monotonic() < ends:
            if run.team.size == 4 and (self._folder / "killed").exists():
                return
            time.sleep(0.05)


def train_worker(folder: Path, name: str) -> int:
    """One process of a run; the exit code is that of `onward train`."""
    run = onward.train(
        folder / "m.onnx",
        folder / "rows.csv",
        target="kind",
        batch_size=16,
        epochs=STEPS,
        max_steps=STEPS,
        save_every=5,
        ema=0.9,
        logical_shards=12,
        threads=1,
        name=name,
        runs=str(folder / "runs"),
        callbacks=[WaitForChange(folder)] if name == "changed" else (),
    )
    return INTERRUPTED if run.stopped else 0


@dataclass
class Tally:
    """The starts of the run: processes, and the step that they continued from."""

    starts: list[dict[str, int]] = field(default_factory=list)
    fault: str = ""

    def line(self) -> str:
        starts = ", ".join(f"{each['processes']} from step {each['step']}" for each in self.starts)
        return f"R10: {STEPS} steps on {starts}: {self.fault or 'the same bits'}"


def change_processes() -> Tally:
    """Train an undisturbed run, and one whose machines leave and join."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder)
        alone = start_launcher(folder, "alone", "--nproc", "4")
        if code := alone.wait(LIMIT):
            return Tally(fault=f"the undisturbed run ended with exit code {code}")
        try:
            _change(folder)
        except TimeoutError as error:
            output = (folder / "output.log").read_text()[-3000:]
            return Tally(_starts(folder), f"{error}\n{output}")
        tally = Tally(_starts(folder))
        runs = [RunFolder(folder / "runs" / name) for name in ("alone", "changed")]
        tally.fault = run_difference(*runs)
        sizes = [each["processes"] for each in tally.starts]
        if not tally.fault and sizes != [4, 3, 4]:
            tally.fault = f"IT HAD {sizes} PROCESSES"
        if not tally.fault and len(list((folder / "runs").iterdir())) != 2:
            tally.fault = "IT BEGAN ANOTHER RUN"
    return tally


def _change(folder: Path) -> None:
    """Run four machines, kill one of them, start one again, and wait for the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    words = ("--nproc", "1", "--nodes", "3:4", "--rdzv", endpoint, "--max-restarts", "9")
    machines = [start_launcher(folder, "changed", *words)]
    try:
        _wait(lambda: _answers(endpoint), "the first machine did not start", machines)
        machines += [start_launcher(folder, "changed", *words) for _ in range(3)]
        _wait(lambda: _waiting(folder, 4), "4 processes did not start", machines)
        lost = machines.pop()
        for process in children(lost.pid):  # its process dies with the agent
            os.kill(process, signal.SIGKILL)
        lost.wait(LIMIT)
        (folder / "killed").touch()
        _wait(lambda: _waiting(folder, 3), "3 processes did not go on", machines)
        machines.append(start_launcher(folder, "changed", *words))
        _wait(lambda: all(each.poll() == 0 for each in machines), "4 did not end", machines)
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()


def start_launcher(folder: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    module = ["-m", "conformance.reliability.changing_processes", "--child", str(folder), name]
    command = [sys.executable, "-m", "onward", "launch", *options, *module]
    with (folder / "output.log").open("ab") as log:
        variables = worker_variables(os.environ)
        return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)


def children(process: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    return [
        int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def _waiting(folder: Path, size: int) -> bool:
    return len(list(folder.glob(f"waits-{size}-*"))) == size


def _answers(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    with socket.socket() as found:
        return found.connect_ex((host, int(port))) == 0


def _starts(folder: Path) -> list[dict[str, int]]:
    file = folder / "starts"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _wait(met: Callable[[], bool], what: str, machines: list[subprocess.Popen[bytes]]) -> None:
    ends = time.monotonic() + LIMIT
    while not met():
        if time.monotonic() > ends or any(machine.poll() for machine in machines):
            raise TimeoutError(what)
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return train_worker(Path(given.child[0]), given.child[1])
    tally = change_processes()
    print(tally.line())
    return 1 if tally.fault else 0


if __name__ == "__main__":
    sys.exit(main())
