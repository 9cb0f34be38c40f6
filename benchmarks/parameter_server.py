"""A parameter server against data parallel training: how well and how fast it trains.

    python benchmarks/parameter_server.py [--epochs 6] [--output FILE]

Handwritten digits and a small network; workers are threads over sockets of this machine. A worker
sleeps between its pull and its push, which stands for the computing of a larger model: 20 ms, or
100 ms on a slow machine. The rows of all workers together are the same in every case of a table.
"data parallel" is the synchronous mode, whose updates are those of an all-reduce.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report

import onward
from onward.distributed import ParameterServer, ParameterServerWorker, ServerSettings
from onward.runner.digits import TRAIN, build_network, load_digits

TOKEN = "a token for a benchmark"
BATCH, FAST = 32, 0.02  # rows, and seconds of a batch
SLOW_ONE = [FAST, FAST, FAST, 5 * FAST]

ALONE, EIGHT = ServerSettings(staleness=0), ServerSettings(staleness=0, average=8)
BOUNDED, ASYNCHRONOUS = ServerSettings(staleness=3), ServerSettings()
SCALED = ServerSettings(scale_by_staleness=True)
QUALITY = {  # mode: settings, workers, rows of a worker's batch
    "one process": (ALONE, 1, BATCH),
    "data parallel": (EIGHT, 8, BATCH // 8),
    "bounded, staleness 3": (BOUNDED, 8, BATCH),
    "asynchronous": (ASYNCHRONOUS, 8, BATCH),
    "asynchronous, rate / (1 + staleness)": (SCALED, 8, BATCH),
}
SPEED = {  # mode: settings, with four workers
    "data parallel": ServerSettings(staleness=0, average=4),
    "bounded, staleness 8": ServerSettings(staleness=8),
    "asynchronous": ASYNCHRONOUS,
}
PLAIN, MOMENTUM = onward.optimizers.SGD(lr=0.1), onward.optimizers.SGD(lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", type=Path, help="write the results to this file")
    given = parser.parse_args()
    rows = []
    for table, optimizer in (("8 workers, momentum", MOMENTUM), ("8 workers, plain SGD", PLAIN)):
        for mode, (settings, workers, batch) in QUALITY.items():
            case = Case(table, mode, settings, optimizer, [FAST] * workers, batch)
            rows.append(measure(case, given.epochs))
    for table, seconds in (("4 equal machines", [FAST] * 4), ("1 of 4 is slow", SLOW_ONE)):
        for mode, settings in SPEED.items():
            rows.append(measure(Case(table, mode, settings, PLAIN, seconds, BATCH), given.epochs))
    for row in rows:
        print(
            f"{row['table']:20} {row['mode']:37} {row['updates']:5} updates  staleness "
            f"{row['staleness']:4.1f}  loss {row['loss']:.3f}  {row['right']:6.1%}  "
            f"{row['rows_per_second']:6.0f} rows/s"
        )
    print("written to", report.write("parameter_server", rows, given.output))


@dataclass(frozen=True)
class Case:
    """A server's settings, and workers that take so many seconds for a batch of some rows."""

    table: str
    mode: str
    settings: ServerSettings
    optimizer: Any
    seconds: list[float]
    batch: int


def measure(case: Case, epochs: int) -> dict[str, Any]:
    """Train with a worker for each of the case's seconds: the result's quality, and the speed."""
    images, labels = load_digits()
    loss = onward.losses.CrossEntropy(output="scores")
    program = onward.compile_training(build_network(), loss, case.optimizer)
    queue = Queue(images[:TRAIN], labels[:TRAIN], case.batch, epochs)
    session = open_session(program)
    with ParameterServer(session, case.settings) as server:
        address = server.listen(TOKEN)
        workers = [open_worker(program, address, each) for each in case.seconds]
        threads = [threading.Thread(target=w.train, args=(queue.take(),)) for w in workers]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = time.perf_counter() - start
        used = server.staleness
    results = session.evaluate({"image": images[TRAIN:], "labels": labels[TRAIN:]})
    return {
        "table": case.table,
        "mode": case.mode,
        "updates": session.steps,
        "staleness": sum(s * n for s, n in used.items()) / sum(used.values()),
        "loss": float(results["loss"]),
        "right": float(np.mean(results["scores"].argmax(1) == labels[TRAIN:])),
        "rows_per_second": len(queue) * case.batch / taken,
    }


def open_session(program: Any) -> onward.TrainingSession:
    options = onward.SessionOptions()
    options.intra_op_num_threads = 1
    return onward.TrainingSession(program, sess_options=options)


def open_worker(program: Any, address: str, seconds: float) -> ParameterServerWorker:
    """A worker on a machine that takes so many seconds for a batch."""
    session = open_session(program)
    backward = session.run_backward

    def take_longer() -> None:
        time.sleep(seconds)
        backward()

    session.run_backward = take_longer  # type: ignore[method-assign]
    return ParameterServerWorker(session, address, token=TOKEN)


class Queue:
    """The batches of all epochs; each is taken by the worker that is free first."""

    def __init__(self, images: Any, labels: Any, batch: int, epochs: int) -> None:
        rng = np.random.default_rng(0)
        whole = len(labels) // BATCH * BATCH
        orders = [rng.permutation(len(labels))[:whole] for _ in range(epochs)]
        self._parts = [part for order in orders for part in np.split(order, whole // batch)]
        self._images, self._labels = images, labels
        self._left = iter(self._parts)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._parts)

    def take(self) -> Iterator[dict[str, Any]]:
        while True:
            with self._lock:
                part = next(self._left, None)
            if part is None:
                return
            yield {"image": self._images[part], "labels": self._labels[part]}


if __name__ == "__main__":
    main()
