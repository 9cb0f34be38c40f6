"""R20: a model is replaced under load without a failed request; a broken file changes nothing.

    python -m conformance.reliability.hot_reloads [--times N] [--connections N]

Each generation of the model has other weights and says its number in its answers. Files are
replaced while clients send requests: every answer must be right for the generation it names, and
once a generation has answered, none before it answers a later request. Half of the reloads are
noticed by the server, which watches its folder, half are asked for. One file is corrupt: it is
refused, and the generation before it goes on.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.reliability.serving_client import CutAnswer, Link, Tally, binary_request
from conformance.reliability.serving_models import NAME, write_model, wrong_scores
from conformance.reliability.serving_process import COMMAND, ServerProcess, row_arguments

NOTICED = 30.0  # seconds in which a new file must answer
CORRUPT_WAIT = 1.0  # seconds in which a corrupt file could do harm


@dataclass
class Reloads:
    """The state that the clients and the replacing of files share."""

    tally: Tally = field(default_factory=Tally)
    newest: int = 0  # generation that has answered
    replaced: int = 0
    is_over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, number: int, outputs: Any, at_least: int) -> str:
        """What is wrong with an answer; `at_least` had answered when its request was sent."""
        wrong = wrong_scores(number, outputs)
        if wrong:
            return wrong
        made = int(outputs["made"].ravel()[0])
        if made < at_least:
            return f"generation {made} answered request {number} after generation {at_least} had"
        if made > self.newest:
            self.newest = made
            self.changed.set()
        return ""


def reload_all(
    times: int, connections: int, command: Sequence[str] = COMMAND, by_request: bool = True
) -> Reloads:
    """Replace the model so many times under load, one of them by a corrupt file."""
    found = Reloads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models" / NAME / "1" / "model.onnx"
        write_model(path, 0)
        with ServerProcess(path.parents[2], command) as server:
            asyncio.run(_reload_all(server, path, times, connections, found, by_request))
    return found


async def _reload_all(
    server: ServerProcess,
    path: Path,
    times: int,
    connections: int,
    found: Reloads,
    by_request: bool,
) -> None:
    clients = [
        asyncio.create_task(_client(server.port, first, connections, found))
        for first in range(connections)
    ]
    try:
        for generation in range(1, times + 1):
            asks = by_request and generation % 2 == 0
            if generation == times // 2 + 1:
                await _corrupt(server, path, asks, found)
            else:
                await _replace(server, path, generation, asks, found)
            if any(task.done() for task in clients):
                break
    finally:
        found.is_over = True
        await asyncio.gather(*clients)


async def _replace(
    server: ServerProcess, path: Path, generation: int, asks: bool, found: Reloads
) -> None:
    found.changed.clear()
    await asyncio.to_thread(write_model, path, generation)
    if asks:
        status = await asyncio.to_thread(
            server.ask, "POST", f"/v2/repository/models/{NAME}/load", "{}"
        )
        if status != 200:
            found.tally.faults.append(f"the load of generation {generation} got {status}")
    try:
        async with asyncio.timeout(NOTICED):
            while found.newest < generation:
                found.changed.clear()
                await found.changed.wait()
    except TimeoutError:
        found.tally.faults.append(f"generation {generation} did not answer in {NOTICED:g} s")
    found.replaced += 1


async def _corrupt(server: ServerProcess, path: Path, asks: bool, found: Reloads) -> None:
    """Half of a file, as a copy that is not finished leaves it."""
    before = found.newest
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    status = await asyncio.to_thread(server.ask, "POST", f"/v2/repository/models/{NAME}/load", "{}")
    if status < 400:
        found.tally.faults.append(f"the load of a corrupt file got {status}")
    counted, until = found.tally.outcomes["200"], time.monotonic() + CORRUPT_WAIT
    while time.monotonic() < until or found.tally.outcomes["200"] < counted + 20:
        await asyncio.sleep(0.02)
        if time.monotonic() > until + NOTICED:
            break
    if found.tally.outcomes["200"] < counted + 20 or found.newest != before:
        found.tally.faults.append(f"generation {before} did not go on after a corrupt file")
    found.replaced += 1


async def _client(port: int, first: int, step: int, found: Reloads) -> None:
    link, number = await Link(port).open(), first
    while not found.is_over:
        number += step
        at_least = found.newest

        def check(number: int, outputs: Any, at_least: int = at_least) -> str:
            return found.check(number, outputs, at_least)

        try:
            answer = await link.exchange(binary_request(number))
        except CutAnswer as error:
            found.tally.faults.append(f"the answer to request {number} was cut off: {error}")
            break
        if answer is not None and answer.status == 503:  # a reload is no reason to refuse
            found.tally.faults.append(f"request {number} got 503 during a reload")
        found.tally.count(answer, number, check)
        if not link.stays_open(answer):
            link.close()
            link = await Link(port).open()
        await asyncio.sleep(0.001)
    link.close()


def main() -> int:
    given = row_arguments(__doc__, times=100, connections=16)
    found = reload_all(given.times, given.connections, given.server)
    total = found.tally.outcomes.total()
    print(
        f"R20: {found.replaced} reloads under load, one of a corrupt file, {total:,} requests; "
        f"5xx, wrong, stale or lost: {found.tally.failures(total)}"
    )
    for fault in found.tally.faults[:20]:
        print(f"  {fault}")
    return 1 if found.tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
