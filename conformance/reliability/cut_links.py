"""Cut the network between two machines of a training run, restore it, and see the run recover.

    python -m conformance.reliability.cut_links                  # 5 cuts
    python -m conformance.reliability.cut_links --times 1

Two network namespaces stand in for two machines: each has an agent and a process of the run, and
one link joins them. Linux makes them without root (`unshare -rnm`). After each cut both machines
must notice; after the link is back, they must find each other again and continue from the last
checkpoint, and at the end every step must have been counted once. Every second cut lasts until
the agent of the machine that is cut off has lost its connection, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("cut_links_worker.py")
TIMES, STEPS = 5, 60  # steps for each cut, and as many at the end
LIMIT = 180.0  # seconds for each change; a guard
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29400
LOST = "is lost; trying to join again"
# what `onward launch` uses is more patient
AGENT = """
import os, sys
from onward.distributed.launchers.local_processes import run_local
from onward.distributed.launchers.rendezvous import RendezvousTimes
times = RendezvousTimes(keep_alive=1, attempts=5, last_call=1, store=5, join=120)
sys.exit(run_local([sys.executable, *sys.argv[3:]], 1, variables=os.environ, nodes=(2, 2),
                   rendezvous=sys.argv[1], max_restarts=int(sys.argv[2]), times=times))
"""


@dataclass
class Tally:
    """How long cuts went unnoticed, and how long recovery took."""

    noticed: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)
    steps: int = 0
    long: int = 0  # cuts that lasted until an agent had lost its connection
    fault: str = ""

    def line(self) -> str:
        if self.fault:
            return f"{len(self.recovered)} cuts survived, then: {self.fault}"
        return (
            f"{len(self.recovered)} cuts ({self.long} of them until an agent gave up): noticed on "
            f"both machines within {max(self.noticed):.1f} s, training again "
            f"{max(self.recovered):.1f} s after the link was back; "
            f"{self.steps} steps, each counted once"
        )


def supported() -> bool:
    """Whether this machine allows namespaces without root."""
    if sys.platform != "linux" or not (shutil.which("unshare") and shutil.which("ip")):
        return False
    tried = subprocess.run(
        ["unshare", "-rnm", "ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


def cut_links(times: int = TIMES) -> Tally:
    """Run the cuts in a process that has namespaces of its own."""
    command = [sys.executable, "-m", "conformance.reliability.cut_links", "--inside"]
    alone = ["unshare", "-rnm", "--kill-child", "--fork", "--pid", "--mount-proc"]
    done = subprocess.run(
        [*alone, *command, "--times", str(times)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT * (times + 2),
        check=False,
    )  # fmt: skip
    if done.returncode:
        return Tally(fault=(done.stdout + done.stderr)[-3000:] or "it did not run")
    return Tally(**json.loads(done.stdout.splitlines()[-1]))


# -- inside of the namespaces ---------------------------------------------------------------------


def _run(times: int) -> Tally:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _make_link(folder)
        agents = [_start_agent(folder, index, times) for index in range(2)]
        try:
            return _cut(folder, agents, times)
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()


def _cut(folder: Path, agents: list[subprocess.Popen[bytes]], times: int) -> Tally:
    tally = Tally()

    def until(met: Callable[[], bool], what: str) -> float:
        """Wait; the seconds that it took."""
        started = time.monotonic()
        while not met():
            ended = [agent.returncode for agent in agents if agent.poll() is not None]
            if ended or time.monotonic() > started + LIMIT:
                logs = "\n".join(file.read_text() for file in sorted(folder.glob("*.log")))
                raise RuntimeError(f"waiting for {what}: agents ended {ended}\n{logs}")
            time.sleep(0.02)
        return time.monotonic() - started

    try:
        for number in range(times):
            until(lambda n=number: _step(folder) >= STEPS * n + 5, "the first steps")
            before = _notices(folder)
            _ip("link", "set", "va", "down")
            noticed = until(
                lambda b=before: all(now > old for now, old in zip(_notices(folder), b)),
                "both to notice the cut",
            )
            tally.noticed.append(noticed)
            if number % 2:  # so long that the agent, too, gives the connection up
                lost = _count(folder, 1, LOST)
                until(lambda n=lost: _count(folder, 1, LOST) > n, "an agent to lose the connection")
                tally.long += 1
            last = _step(folder)
            _ip("link", "set", "va", "up")
            again = until(lambda s=last: _step(folder) > s, "the next step")
            tally.recovered.append(again)
        codes = [agent.wait(LIMIT) for agent in agents]
        if codes != [0, 0]:
            logs = "\n".join(file.read_text() for file in sorted(folder.glob("*.log")))
            tally.fault = f"exit codes {codes}\n{logs}"
    except RuntimeError as error:
        tally.fault = str(error)
    if not tally.fault:
        step, total = json.loads((folder / "checkpoint.json").read_text())
        tally.steps = step
        if total != 3 * step * (step + 1) // 2:  # (1 + 2) * (1 + 2 + ... + step)
            tally.fault = f"{step} steps add up to {total}: some were lost or counted twice"
    return tally


def _make_link(folder: Path) -> None:
    """Another network, and one link to it."""
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    _ip("link", "set", "lo", "up")
    _ip("netns", "add", "other")
    _ip("link", "add", "va", "type", "veth", "peer", "name", "vb")
    _ip("link", "set", "vb", "netns", "other")
    _ip("addr", "add", f"{ADDRESSES[0]}/24", "dev", "va")
    _ip("link", "set", "va", "up")
    _ip("-n", "other", "addr", "add", f"{ADDRESSES[1]}/24", "dev", "vb")
    for device in ("lo", "vb"):
        _ip("-n", "other", "link", "set", device, "up")


def _start_agent(folder: Path, index: int, times: int) -> subprocess.Popen[bytes]:
    """The agent of one machine, in its namespace; its warnings go to a file."""
    start = ["ip", "netns", "exec", "other"] if index else []
    steps = STEPS * (times + 1)
    interface = {"GLOO_SOCKET_IFNAME": "vb" if index else "va"}
    with (folder / f"{index}.log").open("wb") as log:
        return subprocess.Popen(
            [*start, sys.executable, "-c", AGENT, f"{ADDRESSES[0]}:{PORT}", f"{times + 2}",
             str(WORKER), str(folder), str(steps)],
            cwd=ROOT,
            env={**os.environ, **interface, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )  # fmt: skip


def _step(folder: Path) -> int:
    file = folder / "checkpoint.json"
    return int(json.loads(file.read_text())[0]) if file.exists() else 0


def _notices(folder: Path) -> list[int]:
    """How often each machine has reported that the run was interrupted."""
    return [_count(folder, index, "PEER LOST") for index in range(2)]


def _count(folder: Path, index: int, words: str) -> int:
    return (folder / f"{index}.log").read_text().count(words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=TIMES, help=f"cuts ({TIMES})")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        tally = _run(given.times)
        print(json.dumps(vars(tally)))
        return 0
    if not supported():
        print("not measured: this machine allows no network namespaces without root")
        return 1
    tally = cut_links(given.times)
    print(tally.line())
    return 1 if tally.fault else 0


if __name__ == "__main__":
    sys.exit(main())
