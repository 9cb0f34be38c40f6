"""A real server in a process of its own: `python -m onward serve FOLDER`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0


@dataclass(frozen=True)
class Addresses:
    """Host and port of each transport; empty: it is not tested."""

    http: str
    grpc: str


@contextmanager
def running_server(folder: Path, log: Path) -> Iterator[Addresses]:
    """Serve the models of a folder on free ports until the block ends."""
    http, grpc = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    command = [sys.executable, "-m", "onward", "serve", str(folder)]
    command += ["--http-port", http.split(":")[1], "--grpc-port", grpc.split(":")[1]]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, f"http://{http}/v2/health/ready", log)
            yield Addresses(http, grpc)
        finally:
            process.terminate()
            code = process.wait(60)
            if code != 0:
                print(f"FAIL server exit code {code} after SIGTERM: see {log}")


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
    return port


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server is not ready after {START_SECONDS:.0f} s:\n{log.read_text()}")
