"""R17: a server that gets five times what it can do refuses the rest quickly, and recovers.

    python -m conformance.reliability.overload [--seconds S] [--factor F]

A slow model with a short queue is loaded in a closed loop, which finds its capacity, and then in an
open loop at five times that. What is refused must be a quick 503 with Retry-After; what is accepted
must be right, and not wait longer than the queue explains; the throughput must not break down; and
2 s after the overload, requests must be answered as fast as before it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.reliability.serving_client import Answer, CutAnswer, Link, Tally, binary_request
from conformance.reliability.serving_models import NAME, write_slow_model, wrong_double
from conformance.reliability.serving_process import COMMAND, ServerProcess, row_arguments
from onward.serving.load_test.arrivals import arrival_times
from onward.serving.load_test.load_plan import LoadPlan

QUEUE = 32  # requests that may wait
ROUNDS = 2  # of work in the model: about 10 ms for a row
SHED, RECOVERY = 0.5, 2.0  # seconds: of a refusal (p99), until all is well again
CONNECTIONS = 400  # free ones are used again


@dataclass
class Overload:
    """What happened: times in seconds."""

    tally: Tally = field(default_factory=Tally)
    capacity: float = 0.0  # answers per second of the closed loop
    unloaded: float = 0.0  # median of a single request
    answered: list[float] = field(default_factory=list)
    shed: list[float] = field(default_factory=list)
    rate: float = 0.0  # answers per second during the overload
    recovered: list[float] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """How long the queue, and a machine that is busy, may keep an accepted request."""
        return 3 * (QUEUE + 8) / self.capacity + 1.0

    def judge(self) -> None:
        """Add a fault for each promise that was not kept."""
        found = {
            "nothing was refused": not self.shed,
            "nothing was accepted": not self.answered,
            f"a refusal took {percentile(self.shed, 99):.2f} s (p99)": (
                percentile(self.shed, 99) > SHED
            ),
            f"an accepted request took {percentile(self.answered, 99):.2f} s (p99)": (
                percentile(self.answered, 99) > self.bound
            ),
            f"{self.rate:.0f} answers/s of {self.capacity:.0f}": self.rate < 0.5 * self.capacity,
            f"{percentile(self.recovered, 50):.3f} s a request after the recovery": (
                not self.recovered or percentile(self.recovered, 50) > 3 * self.unloaded + 0.05
            ),
        }
        self.tally.faults += [fault for fault, is_true in found.items() if is_true]


def percentile(times: Sequence[float], percent: float) -> float:
    """
    >>> percentile([3.0, 1.0, 2.0], 50)
    2.0
    """
    ordered = sorted(times) or [0.0]
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def overload(
    seconds: float, factor: float, command: Sequence[str] = COMMAND, rounds: int = ROUNDS
) -> Overload:
    """Load a server with `factor` times its capacity, and see how it takes it."""
    found = Overload()
    with tempfile.TemporaryDirectory() as folder:
        write_slow_model(Path(folder) / NAME / "1" / "model.onnx", rounds, QUEUE)
        with ServerProcess(Path(folder), command) as server:
            asyncio.run(_overload(server.port, seconds, factor, found))
    found.judge()
    return found


async def _overload(port: int, seconds: float, factor: float, found: Overload) -> None:
    found.unloaded = statistics.median(await _one_by_one(port, 8, found))
    start = time.monotonic()
    until = start + seconds / 2
    counts = await asyncio.gather(*(_closed(port, n, until, found) for n in range(8)))
    found.capacity = sum(counts) / (time.monotonic() - start)
    plan = LoadPlan("http://", seconds, 0, rate=factor * found.capacity, seed=1)
    await _open_loop(port, plan, found)
    await asyncio.sleep(RECOVERY)
    found.recovered = await _one_by_one(port, 8, found)


async def _one_by_one(port: int, count: int, found: Overload) -> list[float]:
    link, times = await Link(port).open(), []
    for number in range(count):
        start = time.monotonic()
        answer = await link.exchange(binary_request(number))
        if found.tally.count(answer, number, wrong_double):
            times.append(time.monotonic() - start)
    link.close()
    return times


async def _closed(port: int, first: int, until: float, found: Overload) -> int:
    """Requests one after the other on one connection; how many were answered right."""
    link, count, number = await Link(port).open(), 0, 1_000 * (first + 1)
    while time.monotonic() < until:
        number += 1
        count += found.tally.count(
            await link.exchange(binary_request(number)), number, wrong_double
        )
    link.close()
    return count


async def _open_loop(port: int, plan: LoadPlan, found: Overload) -> None:
    free = [await Link(port).open() for _ in range(50)]
    opened = [*free]
    start, last = time.monotonic(), 0.0

    async def send(number: int) -> None:
        nonlocal last
        link = free.pop() if free else await Link(port).open()
        began = time.monotonic()
        try:
            answer = await link.exchange(binary_request(number))
        except CutAnswer as error:
            found.tally.faults.append(f"the answer to request {number} was cut off: {error}")
            link.close()
            return
        took = time.monotonic() - began
        if found.tally.count(answer, number, wrong_double):
            found.answered.append(took)
            last = time.monotonic() - start
        elif answer is not None and answer.status == 503:
            found.shed.append(took)
            _check_retry_after(answer, number, found.tally)
        if link.stays_open(answer) and len(free) < CONNECTIONS:
            free.append(link)
        else:
            link.close()

    async with asyncio.TaskGroup() as group:
        for number, when in enumerate(arrival_times(plan).tolist(), 100_000):
            delay = start + when - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            group.create_task(send(number))
    found.rate = len(found.answered) / max(last, plan.seconds)
    for link in {*free, *opened}:
        link.close()


def _check_retry_after(answer: Answer, number: int, tally: Tally) -> None:
    if not answer.headers.get("retry-after", "").isdecimal():
        tally.faults.append(f"the refusal of request {number} has no Retry-After")


def report(found: Overload, factor: float, show: Callable[[str], None] = print) -> int:
    count = len(found.answered) + len(found.shed)
    show(
        f"R17: {count:,} requests at {factor:g} x the capacity of {found.capacity:.0f}/s: "
        f"{len(found.shed):,} refused, p99 {percentile(found.shed, 99) * 1e3:.0f} ms; "
        f"{len(found.answered):,} answered at {found.rate:.0f}/s, p99 "
        f"{percentile(found.answered, 99) * 1e3:.0f} ms (bound {found.bound * 1e3:.0f}); after "
        f"2 s {percentile(found.recovered, 50) * 1e3:.0f} ms a request, before "
        f"{found.unloaded * 1e3:.0f}; faults: {len(found.tally.faults)}"
    )
    for fault in found.tally.faults[:20]:
        show(f"  {fault}")
    return 1 if found.tally.faults else 0


def main() -> int:
    given = row_arguments(__doc__, seconds=10.0, factor=5.0)
    return report(overload(given.seconds, given.factor, given.server), given.factor)


if __name__ == "__main__":
    sys.exit(main())
