"""R19: SIGTERM under load loses no request that was accepted.

    python -m conformance.reliability.terminations [--times N] [--connections N]

A server under load gets SIGTERM at a random moment. Every request that was sent before it must be
answered, right or with 503; no answer may be cut off; the server exits with 0. A request that is
sent at the same moment or later may find its connection closed: no server can prevent that.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from conformance.reliability.serving_client import CutAnswer, Link, Tally, binary_request
from conformance.reliability.serving_models import NAME, write_slow_model, wrong_double
from conformance.reliability.serving_process import COMMAND, ServerProcess, row_arguments

SAME_MOMENT = 0.02  # seconds before the signal: the server may not have read the request
EXIT_LIMIT = 40.0


def terminate_all(
    times: int, connections: int, seed: int, command: Sequence[str] = COMMAND
) -> tuple[Tally, int]:
    """SIGTERM so many servers; how requests were answered, and how many were being worked on."""
    tally, waiting, draw = Tally(), 0, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        write_slow_model(Path(folder) / NAME / "1" / "model.onnx", 1, 4 * connections)
        for _ in range(times):
            with ServerProcess(Path(folder), command) as server:
                delay = draw.uniform(0.2, 1.0)
                waiting += asyncio.run(_terminate(server, connections, delay, tally))
    return tally, waiting


async def _terminate(server: ServerProcess, connections: int, delay: float, tally: Tally) -> int:
    """Load a server, end it, and wait for its end; the requests that were open at the signal."""
    signalled: list[float] = []
    open_requests: set[int] = set()

    async def client(first: int) -> None:
        number, link = first, Link(server.port)
        try:
            await link.open()
            while True:
                number += connections
                sent = time.monotonic()
                open_requests.add(number)
                answer = await link.exchange(binary_request(number))
                open_requests.discard(number)
                if answer is None and signalled and sent > signalled[0] - SAME_MOMENT:
                    tally.outcomes["closed after the signal"] += 1
                    return
                tally.count(answer, number, wrong_double)
                if not link.stays_open(answer):
                    link.close()
                    await link.open()
        except CutAnswer as error:
            tally.faults.append(f"the answer to request {number} was cut off: {error}")
        except OSError:  # refused: the server has stopped listening
            if not signalled:
                tally.faults.append(f"request {number} found no server before the signal")
        finally:
            link.close()

    clients = [asyncio.create_task(client(first)) for first in range(connections)]
    await asyncio.sleep(delay)
    open_at_signal = len(open_requests)
    signalled.append(time.monotonic())
    server.process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(EXIT_LIMIT):
            await asyncio.gather(*clients)
    except TimeoutError:
        tally.faults.append(f"clients still wait {EXIT_LIMIT:g} s after the signal")
    try:
        code = await asyncio.to_thread(server.process.wait, EXIT_LIMIT)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        tally.faults.append(f"the server ended with {code}: {server.log()[-300:]}")
    return open_at_signal


def main() -> int:
    given = row_arguments(__doc__, times=20, connections=32)
    tally, waiting = terminate_all(given.times, given.connections, given.seed, given.server)
    print(
        f"R19: SIGTERM {given.times} times under load, {waiting} requests open at the signals; "
        f"lost, cut off or wrong: {tally.failures(waiting)}"
    )
    print(f"  {dict(tally.outcomes.most_common())}")
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
