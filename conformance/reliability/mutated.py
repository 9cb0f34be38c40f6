"""R1: mutated models. No crash, no hang, every rejection an OnwardError.

    python -m conformance.reliability.mutated [--count N] [--provider NAME ...] [--seed S]
                                              [--save FOLDER] [--workers N] [--only NUMBER]

Every mutant is opened and, if it opens, run once on random feeds, in a worker process that is
watched from outside: a crash, or more than two seconds, ends the worker and not the count. Mutants
that misbehaved are saved, and `--only NUMBER` repeats one of them in this process.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from conformance.reliability import mutators, seeds
from conformance.reliability.mutant_worker import attempt
from onward.providers.choose import available

PROVIDERS = ("default", "CPUExecutionProvider", "TorchExecutionProvider",
             "ReferenceExecutionProvider", "OpenVINOExecutionProvider")  # fmt: skip
HANG = 2.0  # seconds of computing that opening and running may take together
STUCK = 10.0  # seconds by the clock after which a worker is given up
STARTING = 120.0  # seconds that a worker may take to import its engines


@dataclass
class Tally:
    """The outcomes of the mutants."""

    provider: str
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    bad: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        return sum(self.outcomes.values())

    def count(self, number: int, outcome: str, detail: str, took: float) -> None:
        self.outcomes[outcome] += 1
        self.slowest = max(self.slowest, took)
        if outcome in ("crash", "hang", "foreign"):
            self.bad.append({"number": number, "outcome": outcome, "detail": detail})

    def line(self) -> str:
        kinds = ", ".join(f"{name} {n:,}" for name, n in self.outcomes.most_common())
        rate = self.tried / self.seconds if self.seconds else 0
        return (
            f"{self.provider}: {self.tried:,} mutants, {len(self.bad)} failures ({kinds}); "
            f"slowest {self.slowest:.2f} s, {rate:.0f} a second"
        )


class Worker:
    """A process that tries mutants one after another, and reports each."""

    def __init__(self, provider: str, seed: int, corpus: str) -> None:
        command = [
            sys.executable,
            "-m",
            "conformance.reliability.mutant_worker",
            provider,
            str(seed),
            corpus,
        ]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, bufsize=0
        )
        self._answers = b""
        self.number: int | None = None
        self.since = time.monotonic()
        self.ready = False

    @property
    def out(self) -> Any:
        return self._process.stdout

    def give(self, number: int) -> None:
        assert self._process.stdin is not None
        self.number, self.since = number, time.monotonic()
        self._process.stdin.write(f"{number}\n".encode())

    def read(self) -> Iterator[dict[str, Any]]:
        """The answers that have come; EOFError when none will come any more."""
        data = os.read(self.out.fileno(), 1 << 16)
        if not data:
            raise EOFError
        *lines, self._answers = (self._answers + data).split(b"\n")
        yield from map(json.loads, lines)

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """Its next answer, if it comes in time."""
        if not select.select([self.out], [], [], seconds)[0]:
            return None
        return next(self.read())

    def end(self) -> str:
        """Kill it; returns the reason if it was dead already."""
        code = self._process.poll()
        self._process.kill()
        code = self._process.wait() if code is None else code
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.out.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def try_all(
    provider: str, count: int, seed: int, *, models: list[onnx.ModelProto], workers: int = 1,
    progress: bool = True, first: int = 0,
) -> Tally:  # fmt: skip
    """Try `count` mutants on a provider."""
    tally, waiting = Tally(provider), iter(range(first, first + count))
    folder = tempfile.TemporaryDirectory()
    corpus = os.path.join(folder.name, "seeds")
    seeds.write(models, Path(corpus))
    crew = [Worker(provider, seed, corpus) for _ in range(min(workers, count))]
    started, shown = time.monotonic(), 0.0
    try:
        while crew:
            ready, _, _ = select.select([worker.out for worker in crew], [], [], 0.1)
            for worker in list(crew):
                crew += _serve_worker(
                    worker, worker.out in ready, crew, waiting, tally, seed, corpus
                )
            tally.seconds = time.monotonic() - started
            if progress and tally.seconds - shown > 1:
                shown = tally.seconds
                print(f"\r{tally.line()[:150]}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("\nstopped; until here:", file=sys.stderr)
    finally:
        for worker in crew:
            worker.end()
        folder.cleanup()
    return tally


def _serve_worker(
    worker: Worker, has_spoken: bool, crew: list[Worker], waiting: Iterator[int], tally: Tally,
    seed: int, corpus: str,
) -> list[Worker]:  # fmt: skip
    """Read a worker's answers and give it more, or replace a dead one; returns the worker."""
    allowed = STUCK if worker.ready else STARTING
    try:
        for answer in worker.read() if has_spoken else ():
            if "ready" in answer:
                worker.ready = True
            elif answer["took"] > HANG:
                _confirm(answer["number"], "hang", "", tally, seed, corpus)
            else:
                tally.count(**answer)
            worker.number = None
            number = next(waiting, None)
            if number is None:
                crew.remove(worker)
                worker.end()
                return []
            worker.give(number)
        if time.monotonic() - worker.since <= allowed:
            return []
        outcome = "hang"
    except (EOFError, OSError):
        outcome = "crash"
    crew.remove(worker)
    cause, number = worker.end(), worker.number
    if number is None:
        raise RuntimeError(f"a worker for {tally.provider} cannot start: {cause}")
    _confirm(number, outcome, cause, tally, seed, corpus)
    return [Worker(tally.provider, seed, corpus)]


def _confirm(number: int, outcome: str, cause: str, tally: Tally, seed: int, corpus: str) -> None:
    """Try a mutant that hung again, in a new worker: another program may have used the CPU."""
    if outcome == "hang":
        worker = Worker(tally.provider, seed, corpus)
        try:
            worker.wait(STARTING)
            worker.give(number)
            answer = worker.wait(STUCK)
            if answer is not None and answer["took"] <= HANG:
                tally.count(**answer)
                return
        except (EOFError, OSError):
            outcome, cause = "crash", worker.end()
        finally:
            worker.end()
    detail = cause if outcome == "crash" else f"over {HANG:g} s"
    tally.count(number, outcome, detail, HANG if outcome == "hang" else 0.0)


def save(tally: Tally, folder: Path, seed: int, models: list[onnx.ModelProto]) -> None:
    """Write the mutants that misbehaved, and the reasons."""
    folder.mkdir(parents=True, exist_ok=True)
    data = [model.SerializeToString() for model in models]
    for entry in tally.bad:
        name = f"{tally.provider}-{seed}-{entry['number']}-{entry['outcome']}"
        (folder / f"{name}.onnx").write_bytes(mutators.mutant(data, seed, entry["number"]))
        (folder / f"{name}.txt").write_text(entry["detail"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--provider", action="append", choices=PROVIDERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="without ONNX's node tests")
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    models = seeds.small() if given.small else seeds.every()
    here = [name for name in PROVIDERS if name == "default" or name in available()]
    failures = 0
    for provider in given.provider or here:
        if given.only is not None:
            data = [model.SerializeToString() for model in models]
            print(attempt(provider, mutators.mutant(data, given.seed, given.only), raising=True))
            continue
        tally = try_all(provider, given.count, given.seed, models=models, workers=given.workers,
                        first=given.first)  # fmt: skip
        print("\r" + tally.line())
        for entry in tally.bad[:20]:
            print(f"  {entry['number']}: {entry['outcome']}: {entry['detail'][:200]}")
        if given.save is not None:
            save(tally, given.save, given.seed, models)
        failures += len(tally.bad)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
