"""A server as a process of its own: started with a command, asked, watched in /proc, ended."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# {path}, {http_port} and {grpc_port} are filled in
COMMAND = (sys.executable, "-m", "onward", "serve", "{path}",
           "--http-port", "{http_port}", "--grpc-port", "{grpc_port}")  # fmt: skip
START_LIMIT, END_LIMIT = 120.0, 60.0  # seconds


@dataclass(frozen=True)
class Footprint:
    """What a server and its worker processes hold."""

    memory: int  # bytes, shared pages counted once (PSS) where the system tells
    files: int
    threads: int


class ServerProcess:
    """A context: the server is ready when it begins, and gone when it ends."""

    def __init__(self, path: Path, command: Sequence[str] = COMMAND) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        words = {"path": str(path), "http_port": str(self.port), "grpc_port": str(free_port())}
        self._command = [word.format(**words) for word in command]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (__exit__ closes it)

    def __enter__(self) -> ServerProcess:
        self.process = subprocess.Popen(
            self._command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )
        limit = time.monotonic() + START_LIMIT
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > limit:
                written = self.log()
                self.__exit__()
                raise RuntimeError(f"the server did not start: {written[-1000:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/v2/health/ready") == 200
        except (OSError, http.client.HTTPException):
            return False

    def ask(self, method: str, path: str, body: str | None = None) -> int:
        """The status of a request of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def footprint(self) -> Footprint:
        """Summed over the process and its descendants."""
        total = [0, 0, 0]
        for number in _descendants(self.process.pid):
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                folder = Path("/proc") / str(number)
                total[0] += _memory(folder)
                total[1] += len(list((folder / "fd").iterdir()))
                total[2] += len(list((folder / "task").iterdir()))
        return Footprint(*total)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _descendants(process: int) -> list[int]:
    found, parents = [process], [process]
    while parents:
        parent = parents.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(number) for number in task.read_text().split()]
                found += children
                parents += children
    return found


def _memory(folder: Path) -> int:
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        wanted = "Pss:"
    except OSError:
        lines, wanted = (folder / "status").read_text().splitlines(), "VmRSS:"
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(wanted)]
    return int(kilobytes) << 10


def row_arguments(about: str | None, **numbers: Any) -> argparse.Namespace:
    """The command line of a serving row: its numbers, --seed and --server."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    for name, usual in numbers.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(usual), default=usual, help=f"({usual})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--server",
        type=lambda text: tuple(shlex.split(text)),
        default=COMMAND,
        help="the command, with {path}, {http_port} and {grpc_port}",
    )
    return parser.parse_args()
