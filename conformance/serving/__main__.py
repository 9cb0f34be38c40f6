"""Run unmodified client libraries against a server, one line for each case and a table at the end.

python -m conformance.serving                                  # starts its own server
python -m conformance.serving --http HOST:PORT --grpc HOST:PORT
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.serving.environment import client_python
from conformance.serving.models import write_models
from conformance.serving.server import Addresses, running_server

CLIENTS = Path(__file__).parent / "clients"
# Scripts and the transport that each needs.
SCRIPTS = {
    "triton_http": "http",
    "triton_http_aio": "http",
    "triton_http_own": "http",
    "triton_grpc": "grpc",
    "triton_grpc_aio": "grpc",
    "triton_grpc_own": "grpc",
    "triton_stream": "grpc",
    "triton_shared_memory": "http grpc",
    "kserve_rest": "http",
    "kserve_grpc": "grpc",
}
SCRIPT_SECONDS = 300


def main() -> int:
    options = _options()
    python = options.python or client_python(options.cache)
    with _server(options) as server:
        counts = {name: _run(python, name, server) for name in options.only or SCRIPTS}
    print(f"\n{'client':24}{'ok':>6}{'failed':>8}")
    for name, count in counts.items():
        if count is None:
            print(f"{name:24}     -       -")
            continue
        print(f"{name:24}{count[0]:6}{count[1]:8}")
    ran = [count for count in counts.values() if count is not None]
    print(f"{'all':24}{sum(ok for ok, _ in ran):6}{sum(failed for _, failed in ran):8}")
    return int(not ran or any(failed for _, failed in ran))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.serving", description=__doc__)
    parser.add_argument("--http", default="", help="host:port of a server that runs")
    parser.add_argument("--grpc", default="", help="host:port of a server that runs")
    parser.add_argument("--models", type=Path, help="only write the models to this folder")
    parser.add_argument("--python", type=Path, help="a Python that has the client libraries")
    parser.add_argument("--cache", type=Path, default=Path("build/serving-clients"))
    parser.add_argument("--only", nargs="*", choices=list(SCRIPTS))
    options = parser.parse_args()
    if options.models:
        write_models(options.models)
        raise SystemExit(0)
    return options


@contextmanager
def _server(options: argparse.Namespace) -> Iterator[Addresses]:
    if options.http or options.grpc:
        yield Addresses(options.http, options.grpc)
        return
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        write_models(models)
        with running_server(models, Path(folder) / "server.log") as addresses:
            yield addresses


def _run(python: Path, name: str, server: Addresses) -> tuple[int, int] | None:
    """Count the cases that passed and failed; None: the transport is not there."""
    needed = SCRIPTS[name].split()
    if not any(getattr(server, each) for each in needed):
        return None
    print(f"\n{name}", flush=True)
    command = [str(python), str(CLIENTS / f"{name}.py")]
    environment = os.environ | {"SERVING_HTTP": server.http, "SERVING_GRPC": server.grpc}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=SCRIPT_SECONDS, text=True
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output, errors, code = str(late.stdout or b"", "utf-8"), "timed out", 1
    print(output, end="", flush=True)
    lines = output.splitlines()
    ok = sum(line.startswith("ok ") for line in lines)
    failed = sum(line.startswith("FAIL ") for line in lines)
    if code and not failed:
        print(f"FAIL {name} ended with {code}: {errors.strip()[-2000:]}")
        failed = 1
    return ok, failed


if __name__ == "__main__":
    sys.exit(main())
