"""R21: memory, files and threads of a server stay flat over many requests.

    python -m conformance.reliability.steady_serving [--requests N] [--connections N]

Most requests are good; a few are malformed or dropped, and connections are opened again, since
leaks hide there. The server is measured after a fifth of the requests, and at the end, each time
with all connections closed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.reliability.malformed_requests import MALFORMED
from conformance.reliability.serving_client import CutAnswer, Link, Tally, binary_request
from conformance.reliability.serving_models import NAME, write_model, wrong_scores
from conformance.reliability.serving_process import (
    COMMAND,
    Footprint,
    ServerProcess,
    row_arguments,
)

NOTHING = Footprint(0, 0, 0)
GROWTH = 8 << 20  # bytes that a heap may drift by without a leak
SETTLED = 5.0  # seconds in which connections that were closed must be forgotten
# requests that the server refuses after it has read all of them: the connection goes on
REFUSED = ("an unknown input", "another datatype", "too few numbers", "no JSON", "no such model")


@dataclass
class Steady:
    """The server at a fifth of the requests, and at the end."""

    tally: Tally = field(default_factory=Tally)
    early: Footprint = NOTHING
    late: Footprint = NOTHING

    def judge(self, growth: int = GROWTH) -> None:
        if self.late.memory > self.early.memory + growth:
            self.tally.faults.append(
                f"memory grew from {self.early.memory >> 20} to {self.late.memory >> 20} MiB"
            )
        if self.late.files > self.early.files:
            self.tally.faults.append(f"files: {self.early.files}, then {self.late.files}")
        if self.late.threads > self.early.threads:
            self.tally.faults.append(f"threads: {self.early.threads}, then {self.late.threads}")


def serve_many(
    requests: int,
    connections: int,
    seed: int,
    command: Sequence[str] = COMMAND,
    growth: int = GROWTH,
) -> Steady:
    """Send the requests, and compare what the server holds."""
    found = Steady()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / NAME / "1" / "model.onnx")
        with ServerProcess(Path(folder), command) as server:
            first = requests // 5
            asyncio.run(_send(server.port, range(first), connections, seed, found.tally))
            found.early = asyncio.run(_settle(server, 0))
            rest = range(first, requests)
            asyncio.run(_send(server.port, rest, connections, seed, found.tally))
            found.late = asyncio.run(_settle(server, found.early.files))
    found.judge(growth)
    return found


async def _settle(server: ServerProcess, files: int) -> Footprint:
    """The footprint when the last connections are closed."""
    last = server.footprint()
    for _ in range(int(SETTLED / 0.1)):
        await asyncio.sleep(0.1)
        now = server.footprint()
        if now.files == last.files and (not files or now.files <= files):
            break
        last = now
    return server.footprint()


async def _send(
    port: int, numbers: Sequence[int], connections: int, seed: int, tally: Tally
) -> None:
    async with asyncio.TaskGroup() as group:
        for first in range(connections):
            group.create_task(_client(port, numbers[first::connections], seed, tally))


async def _client(port: int, numbers: Sequence[int], seed: int, tally: Tally) -> None:
    link = await Link(port).open()
    for number in numbers:
        draw = random.Random(f"{seed} {number}")
        kind = draw.choices(["good", "refused", "dropped", "again"], [0.96, 0.02, 0.01, 0.01])[0]
        try:
            if kind == "refused":
                answer = await link.exchange(MALFORMED[draw.choice(REFUSED)](number))
                if answer is None or not 400 <= answer.status < 500:
                    tally.faults.append(f"malformed request {number} got {answer}")
                stays = link.stays_open(answer)
            elif kind == "dropped":
                request = binary_request(number)
                link.writer.write(request[: draw.randrange(1, len(request) + 1)])
                link.abort()
                stays = False
            else:
                answer = await link.exchange(binary_request(number))
                tally.count(answer, number, wrong_scores)
                stays = kind != "again" and link.stays_open(answer)
        except CutAnswer as error:
            tally.faults.append(f"the answer to request {number} was cut off: {error}")
            stays = False
        if not stays:
            link.close()
            link = await Link(port).open()
    link.close()


def main() -> int:
    given = row_arguments(__doc__, requests=50_000, connections=32)
    found = serve_many(given.requests, given.connections, given.seed, given.server)
    early, late = found.early, found.late
    print(
        f"R21: {given.requests:,} requests; after a fifth of them and at the end: memory "
        f"{early.memory / 2**20:.1f} and {late.memory / 2**20:.1f} MiB, files {early.files} and "
        f"{late.files}, threads {early.threads} and {late.threads}; "
        f"faults: {len(found.tally.faults)}"
    )
    for fault in found.tally.faults[:20]:
        print(f"  {fault}")
    return 1 if found.tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
