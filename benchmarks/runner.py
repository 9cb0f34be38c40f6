"""Measure `onward train` against its own session's steps, Lightning and Hugging Face's Trainer.

    python benchmarks/runner.py                  # every model and engine, and a file of results
    python benchmarks/runner.py mlp32 --engines bare,ours --rounds 1 --pin 0,1 --output FILE
    python benchmarks/runner.py --memory         # an epoch of a file larger than the memory limit
    python benchmarks/runner.py one mlp32 ours FOLDER

`bare` calls TrainingSession.step with feeds that were prepared in memory; `ours` is onward.train on
a file, with its own reading, shuffling, augmentation, metrics and checkpoints (every 1000 steps);
`auto`, which is measured only if asked for, is the same on the fastest engine (`--provider auto`).
Peers train the same weights on the same file with AdamW through a DataLoader: in the process, or in
a worker (`-worker`). `-compiled` has torch.compile, and is measured only if asked for. They are
in the extra `bench`; those that are not installed are left out.

2 threads, each engine in a separate process, in turns: after each step, a callback counts, and
at the end of its turn waits for the next. Figures are medians over turns of the mean
time of a step, so that whatever happens between steps counts. `waiting` is the share of time in
which the loop waited for a batch, `CPU ms` what all threads of the process (not of a worker)
computed for a step: it says more than the time where the machine is busy. The first step counts
from the start of the process.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import racing
import report
import runner_cases as cases

OURS = ("bare", "ours", "auto")
EAGER = ("lightning", "lightning-worker", "huggingface", "huggingface-worker")
COMPILED = tuple(f"{framework}-compiled" for framework in ("lightning", "huggingface"))
ENGINES = (*OURS, *EAGER, *COMPILED)
USUAL = ("bare", "ours", *EAGER)
OF_BARE, OF_PEERS = 0.95, 1.2  # what is to be reached
WARM = 5  # steps at the start of a turn: what was read ahead while waiting does not count
STEPS = 1_000_000_000  # the parent ends the process long before


class Turns:
    """Called after each step of a child: answers a line of input with the time of a step."""

    def __init__(self, waited: Callable[[], float] = lambda: 0.0) -> None:
        self.waited = waited  # the seconds that the loop waited for data, so far
        self._steps, self._began, self._waited, self._used = 0, 0.0, 0.0, 0.0
        self._is_ready = False

    def __call__(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            print("ready", flush=True)
            self._wait()
            return
        self._steps += 1
        if self._steps == WARM:
            self._began, self._waited = time.perf_counter(), self.waited()
            self._used = time.process_time()
        seconds = time.perf_counter() - self._began
        steps = self._steps - WARM
        if steps >= 10 and seconds >= racing.SECONDS:
            from onward.measure.memory.resident_memory import most_resident

            answer = {
                "ms": seconds / steps * 1e3,
                "cpu_ms": (time.process_time() - self._used) / steps * 1e3,
                "waiting": (self.waited() - self._waited) / seconds,
                "peak": most_resident() / (1 << 20),
            }
            print(json.dumps(answer))
            sys.stdout.flush()
            self._wait()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit
        self._steps = 0


def bare(name: str, folder: str) -> None:
    """Steps of the session that onward.train opens, on feeds of its first batches."""
    from itertools import cycle

    from onward.runner.config import make_config
    from onward.runner.open_session import open_session
    from onward.runner.plan.make_plan import make_plan
    from onward.runner.plan.plan_batches import first_feeds

    settings = cases.train_settings(name, folder)
    paths = {key: str(settings[key]) for key in ("model", "data")}
    config = make_config(settings | paths)
    plan = make_plan(config, paths["model"])
    feeds, tick = list(first_feeds(plan.training)), Turns()
    session = open_session(plan, config)
    for batch in cycle(feeds):
        session.step(batch)
        tick()


def ours(name: str, folder: str, **more: Any) -> None:
    """onward.train, with `more` settings."""
    import onward
    from onward.runner.callback import Callback

    class Tick(Callback):
        def on_start(self, run: Any) -> None:
            self._tick = Turns(lambda: run.plan.training.waited)

        def on_step(self, run: Any, step: Any) -> None:
            self._tick()

    settings = cases.train_settings(name, folder) | more
    onward.train(**settings, epochs=1_000_000, callbacks=[Tick()])


def one(name: str, engine: str, folder: str) -> None:
    """In a child process: train, and let Turns answer the parent."""
    warnings.filterwarnings("ignore")
    if engine == "bare":
        bare(name, folder)
        return
    if engine in OURS:
        ours(name, folder, **({"provider": "auto"} if engine == "auto" else {}))
        return
    import runner_peers

    answers, sys.stdout = sys.stdout, sys.stderr  # frameworks print what is no answer
    tick = Turns()

    def answer() -> None:
        sys.stdout = answers
        tick()
        sys.stdout = sys.stderr

    runner_peers.train(name, engine, folder, answer, STEPS)


def measure(name: str, engines: list[str], folder: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each engine, or why it has none."""
    rows, children, firsts = {}, {}, {}
    for engine in engines:
        began = time.perf_counter()
        child = racing.start(__file__, name, engine, folder)
        try:
            racing.read_line(child)
        except racing.ChildFailed as error:
            if engine in OURS:
                raise SystemExit(f"{name} on {engine}: {error}") from error
            rows[engine] = {"model": name, "engine": engine, "failed": str(error)}
            racing.tell(f"{name} {engine}: {error}")
            continue
        children[engine], firsts[engine] = child, time.perf_counter() - began
        racing.tell(f"{name} {engine}: first step after {firsts[engine]:.1f} s")
    for engine, answers in racing.race(children, rounds).items():
        ms = statistics.median(each["ms"] for each in answers)
        rows[engine] = {
            "model": name,
            "engine": engine,
            "ms": ms,
            "steps_per_s": 1e3 / ms,
            "cpu_ms": statistics.median(each["cpu_ms"] for each in answers),
            "waiting": statistics.median(each["waiting"] for each in answers),
            "peak_mb": max(each["peak"] for each in answers),
            "first_step_s": firsts[engine],
            "turns_ms": [each["ms"] for each in answers],
        }
        racing.tell(f"{name} {engine}: {ms:.3f} ms")
    return [rows[engine] for engine in engines]


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our throughput as a share of the bare session's, and relative to each framework's better."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        by = {row["engine"]: row for row in rows if row["model"] == name and "ms" in row}
        for engine, peer in itertools.product(OURS[1:], ("bare", "lightning", "huggingface")):
            them = [row for other, row in by.items() if other.split("-")[0] == peer]
            if engine not in by or not them or (engine, peer) == ("auto", "bare"):
                continue
            best = min(them, key=lambda row: row["ms"])
            # turns are neighbours in time: the ratio of each, not that of medians
            pairs = zip(best["turns_ms"], by[engine]["turns_ms"])
            times = statistics.median(theirs / mine for theirs, mine in pairs)
            wanted = OF_BARE if peer == "bare" else OF_PEERS
            reached = {"times": times, "wanted": wanted, "reached": times >= wanted}
            found.append({"model": name, "engine": engine, "peer": best["engine"], **reached})
    return found


def show(rows: list[dict[str, Any]], ahead: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    names = ("model", "engine", "ms", "CPU ms", "steps/s", "waiting", "peak MB", "first step s")
    table = Table(*names, title="a step of training from a file")
    for row in rows:
        numbers = ["-"] * 6
        if "ms" in row:
            waiting = f"{row['waiting']:.1%}" if row["engine"] == "ours" else "-"
            numbers = [f"{row['ms']:.3f}", f"{row['cpu_ms']:.3f}"]
            numbers += [f"{row['steps_per_s']:.1f}", waiting]
            numbers += [f"{row['peak_mb']:.0f}", f"{row['first_step_s']:.1f}"]
        table.add_row(row["model"], row["engine"], *numbers)
    console.print(table)
    for row in rows:
        if "failed" in row:
            print(f"{row['model']} {row['engine']}: failed: {row['failed']}")
    table = Table("model", "engine", "relative to", "throughput", "wanted", "", box=None)
    for row in ahead:
        numbers = (f"{row['times']:.3f}", f"{row['wanted']:.2f}")
        missed = "" if row["reached"] else "missed"
        table.add_row(row["model"], row["engine"], row["peer"], *numbers, missed)
    console.print(table)


def installed(engines: list[str]) -> list[str]:
    """The engines whose packages are there; says how to install the others."""
    peers = [engine for engine in engines if engine not in OURS]
    if not peers:
        return engines
    import runner_peers

    absent = sorted({name for engine in peers for name in runner_peers.missing(engine)})
    if absent:
        racing.tell(f"left out without {', '.join(absent)}: pip install 'onward[bench]'")
    return [engine for engine in engines if engine in OURS or not runner_peers.missing(engine)]


def main() -> None:
    given = racing.arguments(__doc__ or "", tuple(cases.CASES), ENGINES, USUAL)
    engines, rows = installed(given.engines), []
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            racing.tell(f"{name}: model and data")
            words = [sys.executable, str(Path(__file__).resolve()), "prepare", name, folder]
            subprocess.run(words, check=True)
            rows += measure(name, engines, folder, given.rounds)
    ahead = verdict(rows)
    show(rows, ahead)
    if given.whole or given.output:
        print("written to", report.write("runner", rows, given.output, ahead=ahead))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    elif sys.argv[1:2] == ["prepare"]:
        cases.prepare(*sys.argv[2:])
    elif sys.argv[1:2] == ["--memory"]:
        import runner_memory

        runner_memory.main()
    else:
        main()
