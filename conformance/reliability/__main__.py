"""Measure every row of docs/reliability.md: python -m conformance.reliability [ROW ...]

Runs each row whole, prints its figure and writes them all to conformance/reliability/results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import architecture, circumstances
from conformance.reliability import bombs, mutated, seeds
from onward.providers.choose import available

RESULTS = Path(__file__).parent / "results"
COUNT = 10_000


def r1() -> tuple[bool, list[dict[str, Any]]]:
    """Mutated models on each provider."""
    rows, kept = [], True
    for provider in mutated.PROVIDERS:
        if provider != "default" and provider not in available():
            continue
        workers = os.cpu_count() or 1
        tally = mutated.try_all(provider, COUNT, seed=0, models=seeds.every(), workers=workers)
        print("\r" + tally.line())
        if tally.bad:
            mutated.save(tally, RESULTS / "mutants", 0, seeds.every())
        kept = kept and not tally.bad
        rows.append(
            {
                "provider": provider,
                "mutants": tally.tried,
                "outcomes": dict(tally.outcomes),
                "failures": tally.bad,
                "slowest_s": round(tally.slowest, 3),
                "figure": rate(len(tally.bad), tally.tried),
            }
        )
    return kept, rows


def r2() -> tuple[bool, list[dict[str, Any]]]:
    """The adversarial corpus, which prints its own figure."""
    command = [sys.executable, "-m", "conformance.reliability.adversarial"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout, end="")
    lines = done.stdout.strip().splitlines()
    return done.returncode == 0, [{"figure": lines[-1] if lines else "it did not run"}]


def r3() -> tuple[bool, list[dict[str, Any]]]:
    """Compute bombs: isolated on each engine, and here where the engine can be stopped."""
    rows, kept = [], True
    engines = (None, "TorchExecutionProvider", "ReferenceExecutionProvider")
    for provider, isolated in [(e, True) for e in engines] + [(e, False) for e in engines]:
        names = bombs.NAMES if isolated else [n for n, b in bombs.BOMBS.items() if b.stoppable]
        results = bombs.go_off(names, isolated, provider)
        figure = bombs.verdict(results, bombs.baseline(provider) if isolated else None)
        where = "isolated" if isolated else "in process"
        print(f"{provider or 'default'}, {where}: {figure}")
        n = len(results)
        kept = kept and figure.startswith(f"{n}/{n} ended")
        kept = kept and (not isolated or figure.endswith(f"held {n}/{n}"))
        rows.append({"provider": provider or "default", "where": where, "figure": figure,
                     "bombs": results})  # fmt: skip
    return kept, rows


def _script(name: str, title: str) -> Callable[[], tuple[bool, list[dict[str, Any]]]]:
    """A row that is a script, whose first line of output is its figure."""

    def row() -> tuple[bool, list[dict[str, Any]]]:
        command = [sys.executable, "-m", f"conformance.reliability.{name}"]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, end="")
        lines = done.stdout.strip().splitlines()
        return done.returncode == 0, [{"figure": lines[0] if lines else "it did not run"}]

    row.__doc__ = title
    return row


ROWS: dict[str, Callable[[], tuple[bool, list[dict[str, Any]]]]] = {
    "R1": r1,
    "R2": r2,
    "R3": r3,
    "R4": _script("torn_saves", "kill -9 while checkpoints are saved."),
    "R5": _script("replayed_saves", "The power gone at every point of saving."),
    "R6": _script("bit_flips", "Flipped bits, cut and missing files."),
    "R4D": _script("torn_sharded_saves", "kill -9 while processes save a checkpoint together."),
    "R5D": _script("replayed_sharded_saves", "The power gone at every point of a sharded save."),
    "R6D": _script("damaged_shards", "Flipped bits, cut and missing files of sharded checkpoints."),
    "R8D": _script("full_shard_disks", "A disk of one rank that is full, or fails."),
    "SPLIT": _script("split_brain", "Groups that wake up after their run was taken over."),
    "R7": _script("resume_runs", "Runs that are stopped and resumed."),
    "R7B": _script("interruptions", "Interrupted runs of onward train."),
    "R8": _script("full_disks", "A disk that is full, or fails."),
    "R9": _script("killed_workers", "Workers of a run of two processes, killed."),
    "R9B": _script("cut_links", "The network between two machines, cut and restored."),
    "R10": _script("changing_processes", "4 processes, then 3, then 4 again."),
    "R15": _script("injected_nans", "Batches that are not numbers."),
    "R16": _script("mixed_traffic", "Good, malformed, dropped and slow requests to a server."),
    "R17": _script("overload", "Five times as many requests as a server can answer."),
    "R18": _script("hostile_connections", "Connections to a server that mean harm."),
    "R19": _script("terminations", "SIGTERM to a server under load."),
    "R20": _script("hot_reloads", "Models that are replaced under load."),
    "R21": _script("steady_serving", "A server's memory over many requests."),
    "R22": _script("serving_workers", "Worker processes of a served model, killed under load."),
    "R25": _script("pickles", "Files opened in default ways, pickles among them."),
}


def rate(failures: int, tries: int) -> str:
    """The share of failures; without a failure in n tries, the bound that this shows: 3/n."""
    return f"{failures} in {tries:,}" if failures else f"0 in {tries:,}: < 3/{tries:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure rows of docs/reliability.md.")
    parser.add_argument("rows", nargs="*", metavar="ROW", type=str.upper, help=", ".join(ROWS))
    asked = parser.parse_args().rows or list(ROWS)
    if unknown := [name for name in asked if name not in ROWS]:
        parser.error(f"no row {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    report: dict[str, Any] = {}
    for name in asked:
        if name == "R2" and not importlib.util.find_spec("conformance.reliability.adversarial"):
            continue
        print(f"{name}: {ROWS[name].__doc__}")
        started = time.monotonic()
        kept, rows = ROWS[name]()
        seconds = round(time.monotonic() - started)
        report[name] = {"kept": kept, "seconds": seconds, "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{architecture()}-{time.strftime('%Y-%m-%d')}.json"
    old = json.loads(path.read_text()).get("promises", {}) if path.exists() else {}
    path.write_text(json.dumps({**circumstances(), "promises": {**old, **report}}, indent=2) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 0 if all(row["kept"] for row in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
