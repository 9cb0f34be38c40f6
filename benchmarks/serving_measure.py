"""Start a server, load it, and measure its memory: the parts of benchmarks/serving.py."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from serving_cases import PEERS, Case, Engine

from onward.serving.load_test.client_processes import run_load
from onward.serving.load_test.load_plan import LoadPlan

START_LIMIT = 90.0  # seconds: Ray needs many
WARM = 200  # calls


class Server:
    """A context: the server answers the first request right when it begins."""

    def __init__(self, engine: Engine, case: Case, python: str, cores: set[int] | None) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._engine, self._case, self._cores = engine, case, cores
        self._command = engine.command(python, case.name, case.model, self.port, self.grpc_port)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (__exit__ closes it)

    def __enter__(self) -> Server:
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            self._command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
            start_new_session=True, env=environment,
        )  # fmt: skip
        if self._cores is not None:
            os.sched_setaffinity(self._process.pid, self._cores)
        limit, self.seconds = time.monotonic() + START_LIMIT, time.monotonic()
        try:
            while not self._answers():
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"{self._engine.name} did not start: {self._last_line()}")
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        self.seconds = time.monotonic() - self.seconds
        return self

    def _answers(self) -> bool:
        """Whether the first request gets an answer; a wrong one is an error."""
        payload = self._case.payloads(self._engine, self.url)[0]
        head, _, body = payload.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", line.split()[1], body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if answer.status != 200:
            return False
        named = {name.lower(): text for name, text in answer.getheaders()}
        self._case.check(self._engine, named, data)
        return True

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what its children left
        self._process.wait()
        self._log.close()

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def memory(self) -> tuple[float, float]:
        """RSS and PSS of all its processes, in MB."""
        time.sleep(1.0)  # idle
        group = [p for p in process_numbers() if _session_of(p) == self._process.pid]
        found = [memory_of(number) for number in group]
        return sum(rss for rss, _ in found), sum(pss for _, pss in found)


def measure_load(
    server: Server, case: Case, engine: Engine, connections: int, seconds: float, processes: int = 1
) -> dict[str, float]:
    """Throughput and latencies in a closed loop."""
    plan = LoadPlan(server.url, seconds, warm_up=1.0, connections=connections)
    figures = run_load(plan, case.payloads(engine, server.url), processes)
    if figures.errors:
        raise RuntimeError(f"{engine.name} answered with errors: {dict(figures.outcomes)}")
    latencies = figures.latencies
    return {
        "per_second": figures.throughput,
        "p50_ms": latencies.percentile(50) * 1e3,
        "p99_ms": latencies.percentile(99) * 1e3,
        "max_ms": latencies.maximum * 1e3,
        "client_cpu": figures.cpu_share,
        "start_s": server.seconds,
    }


def measure_bare_session(case: Case, seconds: float) -> float:
    """Microseconds of a run of onnxruntime's session in this process, the median."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(case.model), options, providers=["CPUExecutionProvider"]
    )
    return _median_us(lambda n: session.run(None, case.feeds[n % len(case.feeds)]), seconds)


def measure_grpc(server: Server, case: Case, seconds: float) -> float:
    """Microseconds of a ModelInfer with grpcio's blocking client, the median."""
    return _measure_calls(server.grpc_port, case.grpc_messages(), seconds)


def measure_bare_grpc(case: Case, seconds: float) -> float:
    """The same of a server that is grpcio and onnxruntime, and takes and answers raw bytes."""
    port = free_port()
    words = [str(PEERS / "grpc_server.py"), case.name, str(case.model), str(port)]
    messages = [feeds["x"].tobytes() for feeds in case.feeds]
    with subprocess.Popen([sys.executable, *words]) as process:
        try:
            return _measure_calls(port, messages, seconds, case.answers[0].tobytes())
        finally:
            process.terminate()


def _measure_calls(
    port: int, messages: Sequence[bytes], seconds: float, answer: bytes | None = None
) -> float:
    """Microseconds of a call, the median; the first one must have this answer, if it is given."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=START_LIMIT)
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        found = infer(messages[0], timeout=30)
        if answer is not None and not np.allclose(
            *(np.frombuffer(each, np.float32) for each in (found, answer)), rtol=1e-2, atol=1e-3
        ):
            raise ValueError("the bare gRPC server answers wrongly")
        return _median_us(lambda n: infer(messages[n % len(messages)], timeout=30), seconds)


def _median_us(call: Any, seconds: float) -> float:
    for number in range(WARM):
        call(number)
    times, end, number = [], time.perf_counter() + seconds, 0
    while time.perf_counter() < end or len(times) < WARM:
        start = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - start)
        number += 1
    return statistics.median(times) * 1e6


_LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from peer_model import PeerModel
model = PeerModel(sys.argv[2], sys.argv[3], 1)
size = 64 if sys.argv[2] == "mlp" else 16
dtype = np.float32 if sys.argv[2] == "mlp" else np.int64
model.run_one(np.ones(size, dtype))
print("ready", flush=True)
sys.stdin.read()
"""


def loading_memory(python: str, case: Case) -> tuple[float, float]:
    """RSS and PSS in MB of a process that loads the model, runs it once and waits."""
    command = [python, "-c", _LOAD, str(PEERS), case.name, str(case.model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        time.sleep(1.0)
        found = memory_of(process.pid)
        process.stdin.close()
    return found


def process_numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _session_of(number: int) -> int:
    try:
        return os.getsid(number)
    except OSError:
        return -1


def memory_of(number: int) -> tuple[float, float]:
    """RSS and PSS of a process in MB; zeros if it has ended."""
    try:
        lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0.0, 0.0
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Rss"] * 1024 / 1e6, sizes["Pss"] * 1024 / 1e6


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
