"""Measure `onward serve` against LitServe, Ray Serve, MLServer and bare uvicorn with onnxruntime.

    python benchmarks/serving.py                              # every case, and a file of results
    python benchmarks/serving.py mlp --engines onward,uvicorn --rounds 1 --seconds 2
    python benchmarks/serving.py --peers-python ENVIRONMENT/bin/python --server-cores 0-7

mlp: 64-64-10 over HTTP, 32 connections. minilm: MiniLM with sentences of 5 to 128 tokens, 32
connections. overhead: one connection, the median's difference to a bare session, over HTTP and
gRPC, next to bare uvicorn and bare grpcio with onnxruntime. memory: a server that has answered one
request, less a process that only runs the model.

Each server runs in a process of its own, alone; in each round all are measured, in an order that
rotates; figures are medians over rounds. One load generator (onward bench's) sends to all: raw
bodies to servers whose users write the endpoint, JSON to MLServer, which takes nothing else over
HTTP, and binary tensors of the protocol to Onward. Peers that batch pad in their users' code; each
peer is measured with and without batching, and its better figure counts. The peers have an
environment of their own, made under build/ unless --peers-python names one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import report
from rich.console import Console
from rich.table import Table
from serving_cases import CANNOT, ENGINES, PEERS, USUAL, Case, Engine, make_case
from serving_measure import (
    Server,
    loading_memory,
    measure_bare_grpc,
    measure_bare_session,
    measure_grpc,
    measure_load,
)

ROOT = Path(__file__).parents[1]
CASES = ("mlp", "minilm", "overhead", "memory")
CONNECTIONS = 32
# what is to be reached
FASTER = {"mlp": 2.0, "minilm": 1.5}  # than the best peer, at no worse p99
OVERHEAD_US = {"http": 300.0, "grpc": 400.0}
MEMORY_MB = 120.0


def main() -> None:
    given = _arguments()
    python = given.peers_python or _peers_environment()
    cores = _read_cores(given.server_cores)
    if given.client_cores:
        os.sched_setaffinity(0, _read_cores(given.client_cores) or set())
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(python, cores, given.rounds, given.seconds, given.processes)
        for name in given.cases:
            case = make_case("minilm" if name == "minilm" else "mlp", Path(folder))
            if name == "overhead":
                rows += bench.overhead(case)
            elif name == "memory":
                rows += bench.memory(case, [ENGINES[each] for each in given.engines])
            else:
                rows += bench.throughput(case, [ENGINES[each] for each in given.engines])
            show(name, [row for row in rows if row["case"] == name])
    for line in verdicts(rows):
        print(line)
    versions = _peer_versions(python)
    print("written to", report.write("serving", rows, given.output, peers=versions))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--engines", default=",".join(USUAL), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement (5)")
    parser.add_argument("--processes", type=int, default=1, help="of the load generator (1)")
    parser.add_argument("--peers-python", help="the interpreter that has the peers")
    parser.add_argument("--server-cores", help="cores of the servers: 0-3,6")
    parser.add_argument("--client-cores", help="cores of the load generator")
    parser.add_argument("--output", type=Path, help="write the results to this file")
    given = parser.parse_args()
    given.cases, given.engines = given.cases or list(CASES), given.engines.split(",")
    for kind, asked, known in (("case", given.cases, CASES), ("engine", given.engines, ENGINES)):
        for name in asked:
            if name not in known:
                parser.error(f"no {kind} {name!r}: it must be one of {', '.join(known)}")
    return given


class Bench:
    """Where and how long servers are measured."""

    def __init__(
        self, python: str, cores: set[int] | None, rounds: int, seconds: float, processes: int
    ) -> None:
        self._python, self._cores = python, cores
        self._rounds, self._seconds, self._processes = rounds, seconds, processes

    def throughput(self, case: Case, engines: Sequence[Engine]) -> list[dict[str, Any]]:
        """Answers per second and latencies of each engine under load."""
        found: dict[str, list[dict[str, float]]] = {}
        errors: dict[str, str] = {}
        for number, engine in self._rotated(case, engines):
            tell(f"{case.name}, round {number + 1}: {engine.name}")
            if engine.name in errors:
                continue
            try:
                with self._start(engine, case) as server:
                    load = measure_load(
                        server, case, engine, CONNECTIONS, self._seconds, self._processes
                    )
                found.setdefault(engine.name, []).append(load)
            except (OSError, RuntimeError, ValueError) as error:
                errors[engine.name] = str(error)
                tell(f"{engine.name}: {error}")
        rows: list[dict[str, Any]] = [
            {"case": case.name, "engine": name} | _medians(loads) for name, loads in found.items()
        ]
        return rows + [
            {"case": case.name, "engine": name, "error": error} for name, error in errors.items()
        ]

    def overhead(self, case: Case) -> list[dict[str, Any]]:
        """Microseconds that a request takes longer than a run of the session, one at a time."""
        names = ("bare", "http", "grpc", "uvicorn", "grpcio")
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self._rounds):
            tell(f"overhead, round {number + 1}")
            found["bare"].append(measure_bare_session(case, self._seconds))
            for name, key in (("onward", "http"), ("uvicorn", "uvicorn")):
                engine = ENGINES[name]
                with self._start(engine, case) as server:
                    load = measure_load(server, case, engine, 1, self._seconds)
                    found[key].append(load["p50_ms"] * 1e3)
                    if name == "onward":
                        found["grpc"].append(measure_grpc(server, case, self._seconds))
            found["grpcio"].append(measure_bare_grpc(case, self._seconds))
        middle = {name: statistics.median(times) for name, times in found.items()}
        return [
            {
                "case": "overhead",
                "engine": name,
                "median_us": time,
                "over_us": time - middle["bare"],
            }
            for name, time in middle.items()
        ]

    def memory(self, case: Case, engines: Sequence[Engine]) -> list[dict[str, Any]]:
        """Memory of a server after one request, and what is more than the model's own."""
        base = loading_memory(self._python, case)
        rows = [{"case": "memory", "engine": "model alone", "rss_mb": base[0], "pss_mb": base[1]}]
        for engine in engines:
            if engine.name.endswith("-batched"):
                continue
            tell(f"memory: {engine.name}")
            try:
                with self._start(engine, case) as server:
                    rss, pss = server.memory()
            except (OSError, RuntimeError, ValueError) as error:
                rows.append({"case": "memory", "engine": engine.name, "error": str(error)})
                continue
            row = {"case": "memory", "engine": engine.name, "rss_mb": rss, "pss_mb": pss}
            rows.append(row | {"over_rss_mb": rss - base[0], "over_pss_mb": pss - base[1]})
        return rows

    def _rotated(self, case: Case, engines: Sequence[Engine]) -> Iterator[tuple[int, Engine]]:
        able = [engine for engine in engines if (case.name, engine.name) not in CANNOT]
        for number in range(self._rounds):
            turn = number % len(able)
            for engine in [*able[turn:], *able[:turn]]:
                yield number, engine

    @contextlib.contextmanager
    def _start(self, engine: Engine, case: Case) -> Iterator[Server]:
        with Server(engine, case, self._python, self._cores) as server:
            yield server


def _medians(loads: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(load[key] for load in loads) for key in loads[0]}


# -- the peers' environment -----------------------------------------------------------------------


def _peers_environment() -> str:
    """The interpreter of build/serving-peers, which is made on the first run."""
    folder = ROOT / "build" / "serving-peers"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        tell("installing the peers in build/serving-peers")
        venv.create(folder, with_pip=True, clear=True)
        wanted = str(PEERS / "requirements.txt")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
        (folder / "installed").touch()
    return str(python)


def _peer_versions(python: str) -> dict[str, str]:
    names = ("litserve", "ray", "mlserver", "uvicorn", "httptools", "uvloop", "onnxruntime")
    code = f"from importlib.metadata import version\nfor n in {names!r}: print(n, version(n))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return dict(line.split() for line in done.stdout.splitlines())


def _read_cores(text: str | None) -> set[int] | None:
    """
    >>> _read_cores("0-2,5")
    {0, 1, 2, 5}
    """
    if text is None:
        return None
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


# -- output ---------------------------------------------------------------------------------------


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each bar that was measured: the figure, and whether it was reached."""
    lines = []
    for name, bar in FASTER.items():
        measured = {r["engine"]: r for r in rows if r["case"] == name and "per_second" in r}
        ours = measured.pop("onward", None)
        measured.pop("uvicorn-workers", None)
        if ours is None or not measured:
            continue
        best = max(measured.values(), key=lambda row: row["per_second"])
        ratio = ours["per_second"] / best["per_second"]
        p99 = ours["p99_ms"] / best["p99_ms"]
        text = f"{name}: {ratio:.2f} x {best['engine']}, the best peer, at {p99:.2f} x its p99"
        lines.append(_verdict(text, ratio >= bar and p99 <= 1, f"{bar:g} x at no worse p99"))
    for name, limit in OVERHEAD_US.items():
        for row in rows:
            if row["case"] == "overhead" and row["engine"] == name:
                text = f"{name} adds {row['over_us']:.0f} us to the bare session"
                lines.append(_verdict(text, row["over_us"] <= limit, f"{limit:.0f} us"))
    for row in rows:
        if row["case"] == "memory" and row["engine"] == "onward" and "over_rss_mb" in row:
            text = f"idle memory: {row['over_rss_mb']:.0f} MB over the model's"
            lines.append(_verdict(text, row["over_rss_mb"] <= MEMORY_MB, f"{MEMORY_MB:.0f} MB"))
    return lines


def _verdict(text: str, is_reached: bool, bar: str) -> str:
    return f"{text} (bar: {bar}): {'reached' if is_reached else 'NOT reached'}"


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    best = max((r.get("per_second", 0.0) for r in rows if r["engine"] != "onward"), default=0.0)
    if best:
        rows = [
            r | {"of_best_peer": r["per_second"] / best} if "per_second" in r else r for r in rows
        ]
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "case"))
    table = Table(*columns, title=title)
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(f"{v:,.2f}" if isinstance(v, float) else str(v) for v in cells))
    Console(width=max(100, Console().width)).print(table)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
