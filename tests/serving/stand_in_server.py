"""A small server of the protocol for the tests of load tests and reliability checks.

    python tests/serving/stand_in_server.py PATH --http-port P [--fault NAME]

It runs a model one request at a time, reloads changed files, refuses what its queue cannot hold and
drains on SIGTERM. With --fault it misbehaves in one way, which the checks must find.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

import onward

FAULTS = ("swapped", "server-error", "lost-on-term", "stale")
MOST_HEADERS, MOST_BODY, HEADER_TIMEOUT = 1 << 16, 1 << 26, 10.0
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
           408: "Request Timeout", 413: "Content Too Large", 431: "Headers Too Large",
           500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class Refused(Exception):
    """A request that is answered with an error; `closes`: the connection cannot be used again."""

    def __init__(self, status: int, closes: bool = False) -> None:
        self.status, self.closes = status, closes


class Model:
    """A model file that is opened again when it changes."""

    def __init__(self, path: Path, fault: str) -> None:
        self.folder = path if path.is_dir() else path.parent
        [self.path] = path.glob("*/*/model.onnx") if path.is_dir() else [path]
        self.name = self.path.parents[1].name if path.is_dir() else path.stem
        config = self.path.parents[1] / "config.pbtxt"
        found = re.search(r"max_queue_size: (\d+)", config.read_text()) if config.exists() else None
        self.fault = fault
        self.jobs: queue.Queue[Any] = queue.Queue(int(found[1]) if found else 1024)
        self.seen = self.path.stat().st_mtime_ns
        self.session = self.first = onward.InferenceSession(str(self.path))
        self._runs = 0
        threading.Thread(target=self._run_jobs, daemon=True).start()

    def reload(self) -> None:
        self.seen = self.path.stat().st_mtime_ns
        self.session = onward.InferenceSession(str(self.path))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            if self.path.exists() and self.path.stat().st_mtime_ns != self.seen:
                try:
                    await asyncio.to_thread(self.reload)
                except Exception:
                    continue  # the old one is kept

    def _run_jobs(self) -> None:
        last: Any = None
        while True:
            feeds, loop, done = self.jobs.get()
            self._runs += 1
            is_stale = self.fault == "stale" and self._runs % 10 == 0
            session = self.first if is_stale else self.session
            names = [each.name for each in session.get_outputs()]
            outputs = dict(zip(names, session.run(None, feeds)))
            if self.fault == "swapped" and self._runs % 40 == 0 and last is not None:
                outputs = last
            last = outputs
            loop.call_soon_threadsafe(done.set_result, outputs)


class Server:
    def __init__(self, model: Model, fault: str) -> None:
        self.model, self.fault = model, fault
        self.is_draining = False
        self.busy = 0
        self.count = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        stays, more = True, b""
        try:
            first = await reader.read(1)
            if not first:
                return False
            self.busy += 1
            try:
                method, path, headers, body = await self._read(reader, first)
                status, extra, data = 200, b"", await self._route(method, path, headers, body)
                if isinstance(data, tuple):
                    extra = b"Inference-Header-Content-Length: %d\r\n" % data[0]
                    data = data[1]
            except Refused as error:
                status, stays = error.status, not error.closes
                extra, data = b"Retry-After: 1\r\n", b'{"error": "refused"}'
            if self.fault == "lost-on-term" and self.is_draining:
                return False
            stays = stays and not self.is_draining
            more = b"" if stays else b"Connection: close\r\n"
            head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(data)}\r\n"
            writer.write(head.encode() + extra + more + b"\r\n" + data)
            await writer.drain()
        finally:
            self.busy -= 1 if first else 0
        return stays

    async def _read(self, reader: asyncio.StreamReader, first: bytes) -> Any:
        try:
            async with asyncio.timeout(HEADER_TIMEOUT):
                head = first + await reader.readuntil(b"\r\n\r\n")
                if len(head) > MOST_HEADERS:
                    raise Refused(431, closes=True)
                line, *lines = head.decode("latin-1").split("\r\n")[:-2]
                parts = line.split(" ")
                pairs = [each.split(":", 1) for each in lines]
                if parts[2:] != ["HTTP/1.1"] or any(len(pair) != 2 for pair in pairs):
                    raise Refused(400, closes=True)
                headers = {name.lower(): text.strip() for name, text in pairs}
                length = headers.get("content-length", "0")
                if not length.isdecimal() or len(headers) != len(pairs):
                    raise Refused(400, closes=True)
                if "transfer-encoding" in headers or int(length) > MOST_BODY:
                    raise Refused(413, closes=True)
                body = await reader.readexactly(int(length))
        except asyncio.LimitOverrunError:
            raise Refused(431, closes=True) from None
        except TimeoutError:
            raise Refused(408, closes=True) from None
        return parts[0], parts[1], headers, body

    async def _route(self, method: str, path: str, headers: Any, body: bytes) -> Any:
        name = self.model.name
        inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
        if path.startswith("/v2/health/"):
            if self.is_draining:
                raise Refused(503)
            return b"{}"
        if path == "/v2/repository/index":
            return json.dumps([{"name": name, "version": "1", "state": "READY"}]).encode()
        if path == f"/v2/models/{name}":
            return json.dumps({"name": name, "inputs": inputs, "outputs": []}).encode()
        if path == f"/v2/repository/models/{name}/load":
            try:
                await asyncio.to_thread(self.model.reload)
            except Exception:
                raise Refused(400) from None
            return b"{}"
        if path != f"/v2/models/{name}/infer":
            raise Refused(404)
        if method != "POST":
            raise Refused(405)
        return await self._infer(headers, body)

    async def _infer(self, headers: Any, body: bytes) -> tuple[int, bytes]:
        self.count += 1
        if self.fault == "server-error" and self.count % 40 == 0:
            raise Refused(500)
        feeds = read_feeds(headers, body)
        done = asyncio.get_running_loop().create_future()
        try:
            self.model.jobs.put_nowait((feeds, asyncio.get_running_loop(), done))
        except queue.Full:
            raise Refused(503) from None
        outputs = await done
        described = [
            {"name": name, "datatype": "FP32", "shape": list(value.shape),
             "parameters": {"binary_data_size": value.nbytes}}
            for name, value in outputs.items()
        ]  # fmt: skip
        answer = {"model_name": self.model.name, "model_version": "1", "outputs": described}
        head = json.dumps(answer).encode()
        return len(head), head + b"".join(value.tobytes() for value in outputs.values())

    async def drain(self, server: asyncio.Server, stopped: asyncio.Event) -> None:
        self.is_draining = True
        server.close()
        while self.busy:
            await asyncio.sleep(0.01)
        stopped.set()


def read_feeds(headers: Any, body: bytes) -> dict[str, Any]:
    """The one input of a binary or JSON request; anything unexpected is refused."""
    try:
        text = headers.get("inference-header-content-length", str(len(body)))
        if not text.isdecimal() or int(text) > len(body):
            raise Refused(400)
        request = json.loads(body[: int(text)])
        [entry] = request["inputs"]
        shape = entry["shape"]
        if entry["name"] != "x" or entry["datatype"] != "FP32" or len(shape) != 2 or min(shape) < 0:
            raise Refused(400)
        if "data" in entry:
            x = np.array(entry["data"], np.float32).reshape(shape)
        else:
            size = entry["parameters"]["binary_data_size"]
            if size != len(body) - int(text):
                raise Refused(400)
            x = np.frombuffer(body[int(text) :], np.float32).reshape(shape)
        if x.shape[1] != 64:
            raise Refused(400)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise Refused(400) from None
    return {"x": x}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--http-port", type=int)
    parser.add_argument("--grpc-port", type=int)
    parser.add_argument("--fault", choices=FAULTS, default="")
    given = parser.parse_args()
    model = Model(given.path, given.fault)
    server = Server(model, given.fault)
    listening = await asyncio.start_server(
        server.serve, "127.0.0.1", given.http_port, limit=MOST_HEADERS, backlog=2048
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    watching = asyncio.ensure_future(model.watch())
    draining: list[Any] = []

    def terminate() -> None:
        draining.append(asyncio.ensure_future(server.drain(listening, stopped)))

    loop.add_signal_handler(signal.SIGTERM, terminate)
    await stopped.wait()
    watching.cancel()
    for writer in list(server.writers):
        writer.close()


if __name__ == "__main__":
    asyncio.run(main())
