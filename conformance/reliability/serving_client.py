"""A client that trusts nothing: raw sockets, answers read by hand and compared with numpy's."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.reliability.serving_models import NAME, Array, make_input

WAIT = 60.0  # seconds for an answer: a server that takes longer has lost the request
Check = Callable[[int, dict[str, Array]], str]


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


@dataclass
class Tally:
    """How requests were answered, and what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, answer: Answer | None, number: int, check: Check) -> bool:
        """Count the answer to a good request: right, or refused for now; whether it was right."""
        if answer is None:
            self.outcomes["closed"] += 1
            self.faults.append(f"request {number} was not answered")
            return False
        self.outcomes[str(answer.status)] += 1
        if answer.status == 200:
            try:
                wrong = check(number, read_outputs(answer))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                wrong = f"request {number} got outputs that cannot be read: {error!r}"
            self.faults += [wrong] if wrong else []
            return not wrong
        if answer.status != 503:
            self.faults.append(f"request {number} got {answer.status}: {answer.body[:120]!r}")
        return False

    def failures(self, tries: int) -> str:
        if self.faults:
            return f"{len(self.faults):,} in {tries:,}"
        return f"0 in {tries:,}: < 3/{tries:,}"


class CutAnswer(Exception):
    """An answer began and did not end."""


class Link:
    """One connection to the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: Any = None
        self.writer: Any = None

    async def open(self) -> Link:
        self._reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1 << 20
        )
        return self

    async def exchange(self, payload: bytes, wait: float = WAIT) -> Answer | None:
        """Send a request; its answer, or None if the connection was closed without a byte of it."""
        try:
            async with asyncio.timeout(wait):
                self.writer.write(payload)
                await self.writer.drain()
        except ConnectionError:
            pass  # the answer may be there: servers refuse a body that they have not read
        except TimeoutError:  # the server does not read on
            return None
        return await self.read(wait)

    async def read(self, wait: float = WAIT) -> Answer | None:
        start = time.monotonic()
        try:
            async with asyncio.timeout(wait):
                head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise CutAnswer(repr(error.partial[:80])) from None
            return None
        except (ConnectionError, TimeoutError):
            return None
        lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:-2]:
            name, _, text = line.partition(":")
            headers[name.lower()] = text.strip()
        try:
            async with asyncio.timeout(wait):
                body = await self._read_body(headers)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            raise CutAnswer(lines[0]) from None
        return Answer(int(lines[0].split()[1]), headers, body, time.monotonic() - start)

    async def _read_body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return bytes(await self._reader.readexactly(int(headers.get("content-length", "0"))))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return body

    @staticmethod
    def stays_open(answer: Answer | None) -> bool:
        return answer is not None and answer.headers.get("connection", "").lower() != "close"

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def abort(self) -> None:
        """Close with a reset: the other side has no time to answer."""
        self.writer.transport.abort()


def binary_request(number: int, model: str = NAME) -> bytes:
    """The request of this number, as tritonclient sends it."""
    x = make_input(number)
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32",
             "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    more = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return post(head + x.tobytes(), more, model)


def json_request(number: int, model: str = NAME) -> bytes:
    """The request of this number without binary parts, as curl sends it."""
    x = make_input(number)
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
    return post(json.dumps({"inputs": [entry]}).encode(), "", model)


def post(body: bytes, headers: str = "", model: str = NAME) -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_outputs(answer: Answer) -> dict[str, Array]:
    """The outputs of an answer: binary, or JSON."""
    length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    described, raw = json.loads(answer.body[:length]), answer.body[length:]
    outputs, at = {}, 0
    for entry in described["outputs"]:
        if entry["datatype"] != "FP32":
            raise ValueError(f"{entry['name']} is {entry['datatype']}")
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            flat = np.array(entry["data"], np.float32)
        else:
            flat = np.frombuffer(raw[at : at + size], np.float32)
            at += size
        outputs[entry["name"]] = flat.reshape(entry["shape"])
    if at != len(raw):
        raise ValueError(f"{len(raw) - at} bytes are left over")
    return outputs


def allow_open_files(count: int) -> None:
    """Raise the limit on open files of this process, and of those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
