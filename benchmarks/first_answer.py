"""Time a user's first minutes, from pip install to the first answer of curl, in new environments.

    python benchmarks/first_answer.py                  # Onward from this repository, and LitServe
    python benchmarks/first_answer.py onward --package 'onward[serve]' --rounds 1

Each round makes a virtual environment in an empty folder, without pip's cache, and does what
docs/serving-first-five-minutes.md tells users to do; what they have to write is written by this
script, and their reading and typing takes no time here. Onward's curl is the one that the server
prints. Both serve the same model. Figures are medians over rounds; installing depends on the
network. Triton needs a container, and is not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from rich.console import Console
from rich.table import Table

import onward

ROOT = Path(__file__).parents[1]
START = "start the server, until curl is answered"
LIMIT = 120.0  # seconds for a server to start

LITSERVE_SERVER = """
import litserve, numpy, onnxruntime

class Api(litserve.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession("model.onnx")
    def decode_request(self, request):
        return numpy.array(request["x"], numpy.float32)
    def predict(self, x):
        return self.session.run(None, {"x": x})[0]
    def encode_response(self, output):
        return {"scores": output.tolist()}

if __name__ == "__main__":
    litserve.LitServer(Api(), accelerator="cpu").run(port=8000)
""".lstrip()
LITSERVE_CURL = """curl -s -X POST http://127.0.0.1:8000/predict \
 -H 'Content-Type: application/json' -d '{"x": [[1, 2, 3, 4]]}'"""

Steps = dict[str, float]


class Stopwatch:
    """The seconds of each step."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Any:
        start = time.perf_counter()
        yield
        self.steps[name] = time.perf_counter() - start


def time_onward(folder: Path, package: str) -> Steps:
    """pip install, onward serve, and the curl that it prints."""
    watch = Stopwatch()
    python = _environment(folder, [package], watch)
    command = [str(python.with_name("onward")), "serve", "model.onnx"]
    with _running(command, folder) as log, watch.step(START):
        curl = _wait_for(lambda: _printed_curl(log))
        answer = _wait_for(lambda: _run_curl(curl))
        if "outputs" not in json.loads(answer):
            raise SystemExit(f"{curl}\nwas answered with {answer}")
    return watch.steps


def time_litserve(folder: Path, package: str) -> Steps:
    """pip install, a script of twelve lines, and a curl that the user writes."""
    watch = Stopwatch()
    python = _environment(folder, ["litserve", "onnxruntime"], watch)
    (folder / "server.py").write_text(LITSERVE_SERVER)
    with _running([str(python), "server.py"], folder), watch.step(START):
        answer = _wait_for(lambda: _run_curl(LITSERVE_CURL))
        if "scores" not in json.loads(answer):
            raise SystemExit(f"{LITSERVE_CURL}\nwas answered with {answer}")
    return watch.steps


SERVERS: dict[str, Callable[[Path, str], Steps]] = {
    "onward": time_onward,
    "litserve": time_litserve,
}


def _environment(folder: Path, packages: list[str], watch: Stopwatch) -> Path:
    with watch.step("make an environment"):
        venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages]
    with watch.step("pip install"):
        subprocess.run(install, check=True)
    model = onward.new_model("mlp", features=4, hidden=(16,), classes=3)
    onward.save(model, folder / "model.onnx")
    return python


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Any:
    """A server in the folder, and the file that it prints to."""
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        yield log
    except TimeoutError:
        raise SystemExit(f"{' '.join(command)} did not answer: {log.read_text()[-800:]}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _printed_curl(log: Path) -> str:
    """The command in a server's output that begins with curl, continued lines included."""
    found: list[str] = []
    for line in log.read_text().splitlines():
        if found or line.strip().startswith("curl "):
            found.append(line.strip().removesuffix("\\"))
            if not line.rstrip().endswith("\\"):
                break
    return " ".join(found)


def _run_curl(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _wait_for(ask: Callable[[], str]) -> str:
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        if answer := ask():
            return answer
        time.sleep(0.02)
    raise TimeoutError


def build_wheel(folder: Path) -> str:
    """This repository as users install it, with its extra."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True)
    (wheel,) = folder.glob("onward-*.whl")
    return f"onward[serve] @ {wheel.as_uri()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("servers", nargs="*", help=f"of {', '.join(SERVERS)}")
    parser.add_argument("--package", help="what pip installs for Onward (a wheel of this folder)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write the results to this file")
    given = parser.parse_args()
    if shutil.which("curl") is None:
        parser.error("curl is not installed")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        package = given.package or build_wheel(Path(place))
        for name in given.servers or list(SERVERS):
            rounds = []
            for _ in range(given.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    rounds.append(SERVERS[name](Path(folder), package))
            steps = {step: statistics.median(each[step] for each in rounds) for step in rounds[0]}
            total = statistics.median(sum(each.values()) for each in rounds)
            rows.append({"server": name, "steps": steps, "total": total})
    show(rows)
    print("written to", report.write("first-answer", rows, given.output))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("step", *(row["server"] for row in rows), title="seconds")
    for step in rows[0]["steps"]:
        table.add_row(step, *(f"{row['steps'][step]:.1f}" for row in rows))
    table.add_row("total", *(f"{row['total']:.1f}" for row in rows))
    Console().print(table)


if __name__ == "__main__":
    main()
