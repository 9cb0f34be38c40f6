"""R18: connections that mean harm do not disturb those that do not.

    python -m conformance.reliability.hostile_connections [--attackers N] [--seconds S]

Normal traffic runs first alone, then during each attack: headers that never end (slow-loris), huge
headers, bodies that are announced and do not come, lengths that lie, connections that send nothing
or never read. All normal requests must be answered right; their p99 must not rise above a bound;
an attack may be answered with 4xx or be cut off, never with 5xx (but 501, 503, 505); and afterwards
the server has closed their connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.reliability.overload import percentile
from conformance.reliability.serving_client import (
    CutAnswer,
    Link,
    Tally,
    allow_open_files,
    binary_request,
    post,
)
from conformance.reliability.serving_models import NAME, write_model, wrong_scores
from conformance.reliability.serving_process import COMMAND, ServerProcess, row_arguments

CLIENTS = 8  # of normal traffic
SLOWER, MORE = 5.0, 0.25  # p99 may rise to so many times, and so many seconds more
HARMLESS = (501, 503, 505)
_START = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: localhost\r\n".encode()


async def never_ending_headers(link: Link, until: float) -> None:
    """Slow-loris: one more header now and then, and never the last one."""
    link.writer.write(_START)
    while time.monotonic() < until:
        link.writer.write(b"X-a: b\r\n")
        await link.writer.drain()
        await asyncio.sleep(0.2)


async def slow_bodies(link: Link, until: float) -> None:
    """A body that comes byte by byte."""
    link.writer.write(_START + b"Content-Length: 100000\r\n\r\n")
    while time.monotonic() < until:
        link.writer.write(b"x")
        await link.writer.drain()
        await asyncio.sleep(0.2)


async def silent(link: Link, until: float) -> None:
    """A connection without a request."""
    await asyncio.sleep(max(0.0, until - time.monotonic()))


async def never_reading(link: Link, until: float) -> None:
    """Requests whose answers are never read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, until - time.monotonic())):
            link.writer.transport.pause_reading()
            for number in range(10_000):
                link.writer.write(binary_request(number))
                await link.writer.drain()
                await asyncio.sleep(0.01)


def _sends(*requests: bytes) -> Callable[[Link, float], Awaitable[int | None]]:
    """An attack that sends these bytes and waits for the answer to the first."""

    async def attack(link: Link, until: float) -> int | None:
        answer = await link.exchange(b"".join(requests), wait=max(0.1, until - time.monotonic()))
        return None if answer is None else answer.status

    return attack


ATTACKS: dict[str, Callable[[Link, float], Awaitable[int | None]]] = {
    "headers that never end": never_ending_headers,
    "bodies byte by byte": slow_bodies,
    "silent connections": silent,
    "answers that are never read": never_reading,
    "a header of 1 MB": _sends(_START + b"X-a: " + b"a" * (1 << 20) + b"\r\n\r\n"),
    "100,000 headers": _sends(_START + b"X-a: b\r\n" * 100_000 + b"\r\n"),
    "a path of 1 MB": _sends(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n"),
    "a line of 8 MB without an end": _sends(b"G" * (8 << 20)),
    "a body that does not come": _sends(_START + b"Content-Length: 1000\r\n\r\nshort"),
    "a body of 1 TB": _sends(_START + b"Content-Length: 1099511627776\r\n\r\nshort"),
    "a length of 40 digits": _sends(_START + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n"),
    "a length that is too short": _sends(
        binary_request(0).replace(b"\r\nContent-Length: ", b"\r\nContent-Length: 1\r\nX-a: ")
    ),
    "a chunk of a false size": _sends(_START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
    "a chunk of 1 TB": _sends(_START + b"Transfer-Encoding: chunked\r\n\r\n10000000000\r\n{}\r\n"),
    "chunks and a length": _sends(
        _START + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    ),
    "a JSON part beyond the body": _sends(post(b"{}", "Inference-Header-Content-Length: 5000\r\n")),
    "a header with a zero byte": _sends(_START + b"X-a: \0\r\nContent-Length: 0\r\n\r\n"),
}  # fmt: skip


@dataclass
class Attacked:
    """What normal traffic felt, and how the attacks ended."""

    tally: Tally = field(default_factory=Tally)
    alone: list[float] = field(default_factory=list)
    during: dict[str, list[float]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return len(self.alone) + sum(map(len, self.during.values()))

    def judge(self) -> None:
        bound = SLOWER * percentile(self.alone, 99) + MORE
        for name, times in self.during.items():
            p99 = percentile(times, 99)
            if p99 > bound:
                self.tally.faults.append(f"{name}: p99 rose to {p99:.3f} s, bound {bound:.3f}")
            if not times:
                self.tally.faults.append(f"{name}: no normal request was answered")


def attack_all(
    attackers: int, seconds: float, names: Sequence[str], command: Sequence[str] = COMMAND
) -> Attacked:
    """Normal traffic alone, then during each attack."""
    allow_open_files(2 * attackers + 200)
    found = Attacked()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / NAME / "1" / "model.onnx")
        with ServerProcess(Path(folder), command) as server:
            asyncio.run(_attack_all(server, attackers, seconds, names, found))
    found.judge()
    return found


async def _attack_all(
    server: ServerProcess, attackers: int, seconds: float, names: Sequence[str], found: Attacked
) -> None:
    await _normal(server.port, seconds, found.tally, [])  # warm
    await _normal(server.port, seconds, found.tally, found.alone)
    files = server.footprint().files
    for name in names:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(attackers):
                group.create_task(_attack(server.port, name, until, found))
            times = found.during.setdefault(name, [])
            group.create_task(_normal(server.port, seconds, found.tally, times))
    for _ in range(300):  # the attackers have closed; the server needs a moment to notice
        if server.footprint().files <= files:
            break
        await asyncio.sleep(0.05)
    else:
        found.tally.faults.append(
            f"{server.footprint().files} files are open after the attacks, {files} before"
        )
    if not server.is_ready():
        found.tally.faults.append("the server is not ready after the attacks")


async def _attack(port: int, name: str, until: float, found: Attacked) -> None:
    link = Link(port)
    try:
        await link.open()
        status = await ATTACKS[name](link, until)
        found.ends[str(status or "closed")] += 1
        if status is not None and not (400 <= status < 500 or status in HARMLESS):
            found.tally.faults.append(f"{name} was answered with {status}")
    except (OSError, CutAnswer, asyncio.LimitOverrunError):
        found.ends["cut off"] += 1
    finally:
        link.close()


async def _normal(port: int, seconds: float, tally: Tally, times: list[float]) -> None:
    """Clients that send one request after the other, each on its connection."""

    async def client(first: int) -> None:
        link, number, until = await Link(port).open(), first, time.monotonic() + seconds
        while time.monotonic() < until:
            number += CLIENTS
            start = time.monotonic()
            answer = await link.exchange(binary_request(number))
            tally.count(answer, number, wrong_scores)
            times.append(time.monotonic() - start)
            if not link.stays_open(answer):
                link.close()
                link = await Link(port).open()
            await asyncio.sleep(0.005)  # traffic, not a load test
        link.close()

    await asyncio.gather(*map(client, range(CLIENTS)))


def main() -> int:
    given = row_arguments(__doc__, attackers=200, seconds=3.0)
    found = attack_all(given.attackers, given.seconds, list(ATTACKS), given.server)
    worst = max(found.during, key=lambda name: percentile(found.during[name], 99))
    print(
        f"R18: {len(ATTACKS)} attacks of {given.attackers} connections; of {found.requests:,} "
        f"normal requests, p99 {percentile(found.alone, 99) * 1e3:.1f} ms alone, at most "
        f"{percentile(found.during[worst], 99) * 1e3:.1f} ms ({worst}); "
        f"faults: {found.tally.failures(found.requests)}"
    )
    print(f"  attacks ended with {dict(found.ends.most_common())}")
    for fault in found.tally.faults[:20]:
        print(f"  {fault}")
    return 1 if found.tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
