"""onward bench: a model on several providers, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.alternating_trials import LIMIT, Runner, race
from onward.cli.console import (
    make_console,
    make_table,
    print_json,
    print_table,
    show_bytes,
    show_seconds,
)
from onward.errors import OptionError, ProviderMissing
from onward.measure.machine import machine, versions
from onward.measure.tensor_difference import Difference, compare_tensors
from onward.measure.tuning.trials import BARE, Candidate
from onward.providers.choose import REFERENCE, available, install_hint
from onward.sessions.feed_files import feeds_for


def bench(
    model: arguments.Model,
    files: arguments.FeedFiles = None,
    feed: arguments.Feeds = None,
    size: arguments.Sizes = None,
    seed: arguments.Seed = 0,
    provider: arguments.Providers = None,
    threads: Annotated[
        str, typer.Option("--threads", help="Threads inside an operator; several: 1,2,4.")
    ] = "0",
    seconds: Annotated[float, typer.Option(min=0, help="To measure each for.")] = 3.0,
    limit: arguments.Limit = LIMIT,
    as_json: arguments.Json = False,
) -> None:
    """Measure a model on several providers, side by side.

    Each runs in a process of its own and they take turns. Without --provider: all of this machine
    but the reference. `onnxruntime alone` is the stock package without Onward. Feeds are random
    where no file is given. One that is not done within --limit is ended, and the others go on;
    Ctrl-C prints what is there.

    \b
    onward bench model.onnx
    onward bench model.onnx --size batch=8 --threads 1,2 --provider cpu --provider torch
    """
    candidates = _candidates(arguments.read_providers(provider), _counts(threads))
    paths, sizes = arguments.feed_paths(files, feed), arguments.read_sizes(size)
    feeds = feeds_for(model, paths, sizes, seed)
    runners = [Runner(model, candidate, feeds) for candidate in candidates]
    console = make_console(stderr=as_json)
    ended = race(runners, seconds, limit)
    report = _report(model, feeds, runners, ended)
    if as_json:
        print_json(report)
    else:
        _show(console, report)
    if ended:
        raise typer.Exit(130)
    if not any(runner.timing for runner in runners):
        raise OptionError(f"nothing ran this model: {runners[0].error}")


def _counts(text: str) -> list[int]:
    counts = [part.strip() for part in text.split(",")]
    if not all(count.isdecimal() for count in counts):
        raise OptionError(f"--threads takes counts with commas between, such as 1,2, not {text!r}")
    return [int(count) for count in counts]


def _candidates(named: Sequence[arguments.Named], threads: Sequence[int]) -> list[Candidate]:
    """The named providers, or all of this machine but the slow one; and onnxruntime alone."""
    here = available()
    for name, _ in named:
        if name == "auto":
            raise OptionError("auto is no provider to measure\nonward tune measures what it takes")
        if name not in here:
            raise ProviderMissing(f"{name} is not on this machine\n{install_hint(name)}")
    chosen = list(named) or [(name, {}) for name in here if name != REFERENCE]
    listed = [(BARE, dict[str, Any]()), *chosen]
    return [Candidate(name, count, options) for name, options in listed for count in threads]


def _report(
    model: Path, feeds: Mapping[str, Any], runners: Sequence[Runner], ended: bool
) -> dict[str, Any]:
    batch = _batch(feeds)
    expected = next((runner.outputs for runner in runners if runner.outputs), [])
    return {
        "model": str(model),
        "feeds": {name: [str(feed.dtype), list(feed.shape)] for name, feed in feeds.items()},
        "batch": batch,
        "machine": machine(),
        "versions": versions(),
        "complete": not ended,
        "results": [_row(runner, expected, batch) for runner in runners],
    }


def _batch(feeds: Mapping[str, Any]) -> int | None:
    """How many items a run has: the leading dimension that all feeds share."""
    leading = {feed.shape[0] for feed in feeds.values() if feed.ndim}
    return int(leading.pop()) if len(leading) == 1 else None


def _row(runner: Runner, expected: Sequence[Any], batch: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": str(runner.candidate),
        "provider": runner.candidate.provider,
        "options": dict(runner.candidate.provider_options),
        "threads": runner.candidate.threads,
        "error": runner.error or None,
    }
    timing = runner.timing
    if timing is None:
        return row
    apart = _apart(expected, runner.outputs)
    return row | {
        "runs": len(timing.times),
        "median": timing.median,
        "p99": timing.p99,
        "runs_per_second": timing.throughput,
        "items_per_second": timing.throughput * batch if batch else None,
        "memory": timing.memory,
        "first_run": runner.first,
        "same": apart.same,
        "max_absolute_error": apart.max_absolute,
        "max_relative_error": apart.max_relative,
    }


def _apart(expected: Sequence[Any], outputs: Sequence[Any]) -> Difference:
    return compare_tensors(list(expected), list(outputs))


def _show(console: Console, report: dict[str, Any]) -> None:
    batch = report["batch"]
    by_item = batch is not None and batch > 1
    items = [">items/s"] if by_item else []
    columns = (">median", ">p99", ">runs/s", *items, ">memory", ">first run", ">apart by")
    table = make_table("", *columns)
    rows = [row for row in report["results"] if "median" in row]
    best = min((row["median"] for row in rows), default=0.0)
    for row in rows:
        figures = [
            show_seconds(row["median"]),
            show_seconds(row["p99"]),
            f"{row['runs_per_second']:,.1f}",
            *([f"{row['items_per_second']:,.1f}"] if by_item else []),
            show_bytes(row["memory"]),
            show_seconds(row["first_run"]),
            f"{row['max_absolute_error']:.1e}" + ("" if row["same"] else " !"),
        ]
        table.add_row(row["name"], *figures, style="bold" if row["median"] == best else None)
    shapes = ", ".join(f"{name} {tuple(shape)}" for name, (_, shape) in report["feeds"].items())
    print_table(console, table, f"{report['model']} on {shapes}")
    for row in report["results"]:
        if row["error"]:
            console.print(f"{row['name']}: {row['error']}", style="red")
    if any(not row["same"] for row in rows):
        console.print("! apart by more than 1e-3 of a value (and 1e-5)")
    if not report["complete"]:
        console.print("ended before its time: these are the figures so far")
