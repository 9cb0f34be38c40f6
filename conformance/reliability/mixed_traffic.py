"""R16: good requests are answered right among malformed, dropped and slow ones.

    python -m conformance.reliability.mixed_traffic [--requests N] [--connections N] [--seed S]

Many connections are open at once. Of the requests, 2 % are malformed in one of many ways, 1 % are
dropped half sent or before their answer, and 1 % come in small pieces. Every good request must get
its own right answer or 503; a malformed one must get a 4xx, or its connection be closed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance.reliability.malformed_requests import MALFORMED
from conformance.reliability.serving_client import (
    CutAnswer,
    Link,
    Tally,
    allow_open_files,
    binary_request,
    json_request,
)
from conformance.reliability.serving_models import NAME, write_model, wrong_scores
from conformance.reliability.serving_process import COMMAND, ServerProcess, row_arguments

SHARES = {"malformed": 0.02, "dropped": 0.01, "slow": 0.01}
PIECES = 6  # of a slow request
PAUSE = 0.15  # seconds between them


def send_all(requests: int, connections: int, seed: int, command: Sequence[str] = COMMAND) -> Tally:
    """Start a server, send the requests over as many connections, and check every answer."""
    allow_open_files(2 * connections + 200)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / NAME / "1" / "model.onnx")
        with ServerProcess(Path(folder), command) as server:
            asyncio.run(_send_over(server.port, requests, connections, seed, tally))
            if not server.is_ready():
                tally.faults.append("the server is not ready afterwards")
    return tally


async def _send_over(port: int, requests: int, connections: int, seed: int, tally: Tally) -> None:
    links = [await Link(port).open() for _ in range(connections)]  # all are open at once
    shares = [range(first, requests, connections) for first in range(connections)]
    async with asyncio.TaskGroup() as group:
        for link, numbers in zip(links, shares):
            group.create_task(_send_share(link, port, numbers, seed, tally))


async def _send_share(
    link: Link, port: int, numbers: Sequence[int], seed: int, tally: Tally
) -> None:
    for number in numbers:
        draw = random.Random(f"{seed} {number}")
        try:
            is_open = await _send_one(link, number, draw, tally)
        except CutAnswer as error:
            tally.faults.append(f"the answer to request {number} was cut off: {error}")
            is_open = False
        if not is_open:
            link.close()
            link = await Link(port).open()
    link.close()


async def _send_one(link: Link, number: int, draw: random.Random, tally: Tally) -> bool:
    """Send one request of a kind that is drawn; whether the connection can be used again."""
    kind = draw.choices(["good", *SHARES], [1 - sum(SHARES.values()), *SHARES.values()])[0]
    if kind == "malformed":
        return await _send_malformed(link, number, draw, tally)
    request = (json_request if draw.random() < 0.2 else binary_request)(number)
    if kind == "dropped":
        end = draw.choice([draw.randrange(1, len(request)), len(request)])
        link.writer.write(request[:end])
        await link.writer.drain()
        draw.choice([link.abort, link.close])()
        tally.outcomes["dropped"] += 1
        return False
    if kind == "slow":
        ends = sorted(draw.sample(range(1, len(request)), PIECES - 1))
        for start, end in zip([0, *ends], [*ends, len(request)]):
            link.writer.write(request[start:end])
            await asyncio.sleep(PAUSE)
        request = b""
        tally.outcomes["slow"] += 1
    answer = await link.exchange(request)
    tally.count(answer, number, wrong_scores)
    return link.stays_open(answer)


async def _send_malformed(link: Link, number: int, draw: random.Random, tally: Tally) -> bool:
    name = draw.choice(list(MALFORMED))
    answer = await link.exchange(MALFORMED[name](number))
    outcome = "closed" if answer is None else f"{answer.status // 100}xx"
    tally.outcomes[f"malformed, {outcome}"] += 1
    is_refused = answer is None or 400 <= answer.status < 500 or answer.status in (501, 503, 505)
    if not is_refused and answer is not None:
        shown = answer.body[:100]
        tally.faults.append(f"malformed request ({name}) got {answer.status}: {shown!r}")
    return False  # what follows on this connection may be read as the rest of it


def main() -> int:
    given = row_arguments(__doc__, requests=10_000, connections=1_000)
    tally = send_all(given.requests, given.connections, given.seed, given.server)
    print(
        f"R16: {given.requests:,} requests over {given.connections:,} connections; wrong, lost or "
        f"another status than 2xx, 4xx, 503: {tally.failures(given.requests)}"
    )
    print(f"  {dict(tally.outcomes.most_common())}")
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
