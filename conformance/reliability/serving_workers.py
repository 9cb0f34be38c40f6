"""R22: worker processes of a served model are killed under load.

    python -m conformance.reliability.serving_workers [--kills N] [--workers W] [--seed S]

Threads send requests to the workers of a model, and check each answer; meanwhile random workers are
killed with SIGKILL at random times. No answer may be wrong, a killed worker may cost its own
request alone, and each is replaced. Then a model that kills its process in each run is quarantined
after three of them, and says so.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import onward
from onward.errors import ModelUnavailable, WorkerDied
from onward.serving.settings import ModelSettings
from onward.serving.worker_processes.worker_instance import WorkerInstance, open_worker_instances

GUARD = 120.0  # seconds that a worker may take to be replaced


def write_model(path: Path) -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))
    onward.save(op.model(y=op.Relu(op.MatMul(op.input("x", "float32", ("n", 64)), w))), path)


@dataclass
class Tally:
    """What happened to the requests and to the workers."""

    kills: int = 0
    answers: int = 0
    lost: int = 0  # requests that their worker's death cost
    poisoned: int = 0  # workers that the poison model killed
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.answers
        faults = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        return (
            f"R22: {self.kills} workers killed under load, all replaced; {n:,} answers, "
            f"{self.lost} requests lost with their worker; poison model quarantined after "
            f"{self.poisoned}; wrong answers or other faults: {faults}"
        )


class Load:
    """One thread for each worker, which sends it requests and checks the answers."""

    def __init__(self, workers: list[WorkerInstance], model: Path, tally: Tally) -> None:
        self._tally, self._stopped, self._lock = tally, threading.Event(), threading.Lock()
        self._reference = onward.InferenceSession(model)
        self._answered: dict[int, queue.SimpleQueue[int | None]] = {}
        self._threads = []
        for index, worker in enumerate(workers):
            self._answered[index] = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._send, args=(index, worker)))
        for each in self._threads:
            each.start()

    def _send(self, index: int, worker: WorkerInstance) -> None:
        draw = np.random.default_rng(index)
        while not self._stopped.is_set():
            x = draw.normal(size=(int(draw.integers(1, 9)), 64)).astype(np.float32)
            try:
                y = worker.run({"x": x})["y"]
            except WorkerDied:
                with self._lock:
                    self._tally.lost += 1
                continue
            except Exception as error:
                with self._lock:
                    self._tally.faults.append(f"{type(error).__name__}: {error}")
                return
            is_right = np.array_equal(y, self._reference.run(None, {"x": x})[0])
            with self._lock:
                self._tally.answers += 1
                if not is_right:
                    self._tally.faults.append("a wrong answer")
            self._answered[index].put(worker.pid)

    def wait_for_answers(self, index: int, killed: int, count: int) -> bool:
        """Wait until a new process has answered so often; False if it does not."""
        deadline = time.monotonic() + GUARD
        while count:
            try:
                pid = self._answered[index].get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            count -= pid != killed
        return True

    def stop(self) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join(GUARD)


def kill_under_load(model: Path, kills: int, workers: int, seed: int, tally: Tally) -> None:
    draw = random.Random(seed)
    settings = ModelSettings(workers=workers, threads=1)
    opened = open_worker_instances(model, settings, "healthy", "1")
    load = Load(opened, model, tally)
    try:
        for _ in range(kills):
            index = draw.randrange(workers)
            victim = opened[index].pid
            if victim is None:
                tally.faults.append("a worker was not replaced")
                break
            os.kill(victim, signal.SIGKILL)
            tally.kills += 1
            if not load.wait_for_answers(index, victim, draw.randrange(10, 60)):
                tally.faults.append(f"no answer {GUARD:g} s after a kill")
                break
    finally:
        load.stop()
        for each in opened:
            each.close()


def quarantine_poison(model: Path, tally: Tally) -> None:
    """Kill the worker in each run, as a model does that crashes."""
    (worker,) = open_worker_instances(model, ModelSettings(workers=1, threads=1), "poison", "1")
    x = np.ones((1, 64), np.float32)
    try:
        while tally.poisoned < 10:
            with worker._turn:
                running = worker._living_worker()
            os.kill(running.pid, signal.SIGSTOP)  # it is asked, and dies before it answers
            killer = threading.Timer(0.05, os.kill, (running.pid, signal.SIGKILL))
            killer.start()
            try:
                worker.run({"x": x})
                tally.faults.append("a dead worker answered")
            except WorkerDied:
                tally.poisoned += 1
            finally:
                killer.join()
    except ModelUnavailable as error:
        if tally.poisoned != 3 or "is quarantined" not in str(error):
            tally.faults.append(f"after {tally.poisoned} deaths: {error}")
    else:
        tally.faults.append("a poison model was not quarantined")
    finally:
        worker.close()


def run_all(kills: int, workers: int, seed: int) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        write_model(model)
        kill_under_load(model, kills, workers, seed, tally)
        quarantine_poison(model, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = run_all(given.kills, given.workers, given.seed)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
