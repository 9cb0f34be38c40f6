"""onward bench: measure a model on several providers, in turns, or load-test a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.bench_server import ServerFlags, bench_server
from onward.cli.console import (
    make_console,
    make_table,
    print_json,
    print_table,
)
from onward.cli.progress import WorkProgress
from onward.errors import OptionError, ProviderMissing
from onward.formatting import show_bytes, show_seconds
from onward.measure.alternating_trials import LIMIT, MeasuredCandidate, measure_in_turns
from onward.measure.machine import machine, versions
from onward.measure.tensor_difference import compare_tensors
from onward.measure.tuning.trials import BARE, Candidate
from onward.providers.choose import REFERENCE, available, install_hint
from onward.providers.provider_text import NamedProvider
from onward.sessions.feed_files import feeds_for

_LOAD = "Load-test a server"  # the options' heading in the help


def bench(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="The model's file.", autocompletion=arguments.complete_models, metavar="MODEL"
        ),
    ] = None,
    files: arguments.FeedFiles = None,
    feed: arguments.Feeds = None,
    size: arguments.Sizes = None,
    seed: arguments.Seed = 0,
    provider: arguments.Providers = None,
    threads: Annotated[
        str, typer.Option("--threads", help="Threads inside an operator; several: 1,2,4.")
    ] = "0",
    seconds: Annotated[float, typer.Option(min=0, help="Seconds to measure each candidate.")] = 3.0,
    limit: arguments.Limit = LIMIT,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Load-test this server instead: http://localhost:8000, or grpc://localhost:8001.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Name of the model on the server. Default: its only model.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            help="A file of requests: .npz (the first axis counts them) or .jsonl.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZES",
            help="The shape of a random input: tokens=1,128; dynamic sizes are 1.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    form: Annotated[
        str, typer.Option(help="Tensors as binary or json.", rich_help_panel=_LOAD)
    ] = "binary",
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests per second, however slow the answers are (open loop).",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="With --rate: poisson or constant.", rich_help_panel=_LOAD)
    ] = "poisson",
    connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of connections. Default: 32; with --rate: up to 512.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Client processes.", rich_help_panel=_LOAD)
    ] = 1,
    warm_up: Annotated[
        float, typer.Option(min=0, help="Seconds that are not counted.", rich_help_panel=_LOAD)
    ] = 0.5,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Timeout of one request, in seconds.", rich_help_panel=_LOAD),
    ] = 30.0,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME: TEXT", help="A header of each request.", rich_help_panel=_LOAD),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the report as an HTML page, too.", rich_help_panel=_LOAD),
    ] = None,
    as_json: arguments.Json = False,
) -> None:
    """Measure a model on several providers, side by side, or load-test a running server.

    Each candidate runs in its own process, and they are measured in turns. Without --provider: all
    providers of this machine except the reference. `onnxruntime alone` is the stock package without
    Onward. Feeds are random where no file is given. A candidate that is not done within --limit is
    stopped, and the others continue; Ctrl-C prints the measurements so far.

    With --server: each connection sends its next request after an answer (closed loop), or, with
    --rate, requests start at their own times, and latencies count from then (open loop). Requests
    are random and fit the server's model, unless --requests gives a file.

    \b
    onward bench model.onnx
    onward bench model.onnx --size batch=8 --threads 1,2 --provider cpu --provider torch
    onward bench --server http://localhost:8000 --connections 32
    onward bench --server http://localhost:8000 --rate 500 --seconds 30 --page load.html
    """
    if server is not None:
        if model is not None:
            raise OptionError(
                f"MODEL and --server cannot be given together\n"
                f"leave out {model}; choose a model of the server with --model NAME"
            )
        flags = ServerFlags(
            url=server, model=name, requests=requests, shapes=shape or [], form=form, rate=rate,
            arrivals=arrivals, connections=connections, seconds=seconds, warm_up=warm_up,
            processes=processes, timeout=timeout, headers=header or [], seed=seed, page=page,
            as_json=as_json,
        )  # fmt: skip
        bench_server(flags)
        return
    if model is None:
        raise OptionError("no model given: name its file, or a running server with --server URL")
    candidates = _make_candidates(arguments.read_providers(provider), _read_thread_counts(threads))
    paths, sizes = arguments.feed_paths(files, feed), arguments.read_sizes(size)
    feeds = feeds_for(model, paths, sizes, seed)
    measured = [MeasuredCandidate(model, candidate, feeds) for candidate in candidates]
    console = make_console(stderr=as_json)
    with WorkProgress() as progress:
        interrupted = measure_in_turns(measured, seconds, limit, progress.show_step)
    report = _report(model, feeds, measured, interrupted)
    if as_json:
        print_json(report)
    else:
        _show(console, report)
    if interrupted:
        raise typer.Exit(130)
    if not any(each.timing for each in measured):
        raise OptionError(f"no provider ran this model: {measured[0].error}")


def _read_thread_counts(text: str) -> list[int]:
    counts = [part.strip() for part in text.split(",")]
    if not all(count.isdecimal() for count in counts):
        raise OptionError(f"--threads takes counts separated by commas, such as 1,2, not {text!r}")
    return [int(count) for count in counts]


def _make_candidates(named: Sequence[NamedProvider], threads: Sequence[int]) -> list[Candidate]:
    """onnxruntime alone, then the named providers or all of this machine except the reference."""
    here = available()
    for name, _ in named:
        if name == "auto":
            raise OptionError(
                "--provider auto cannot be measured\nuse onward tune, which measures its candidates"
            )
        if name not in here:
            raise ProviderMissing(f"{name} is not on this machine\n{install_hint(name)}")
    chosen = list(named) or [(name, {}) for name in here if name != REFERENCE]
    listed = [(BARE, dict[str, Any]()), *chosen]
    return [Candidate(name, count, options) for name, options in listed for count in threads]


def _report(
    model: Path, feeds: Mapping[str, Any], measured: Sequence[MeasuredCandidate], interrupted: bool
) -> dict[str, Any]:
    batch = _batch(feeds)
    expected = next((each.outputs for each in measured if each.outputs), [])
    return {
        "model": str(model),
        "feeds": {name: [str(feed.dtype), list(feed.shape)] for name, feed in feeds.items()},
        "batch": batch,
        "machine": machine(),
        "versions": versions(),
        "complete": not interrupted,
        "results": [_row(each, expected, batch) for each in measured],
    }


def _batch(feeds: Mapping[str, Any]) -> int | None:
    """The number of items in a run: the leading dimension that all feeds share."""
    leading = {feed.shape[0] for feed in feeds.values() if feed.ndim}
    return int(leading.pop()) if len(leading) == 1 else None


def _row(measured: MeasuredCandidate, expected: Sequence[Any], batch: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": str(measured.candidate),
        "provider": measured.candidate.provider,
        "options": dict(measured.candidate.provider_options),
        "threads": measured.candidate.threads,
        "error": measured.error or None,
    }
    timing = measured.timing
    if timing is None:
        return row
    difference = compare_tensors(list(expected), list(measured.outputs))
    return row | {
        "runs": len(timing.times),
        "median": timing.median,
        "p99": timing.p99,
        "runs_per_second": timing.throughput,
        "items_per_second": timing.throughput * batch if batch else None,
        "memory": timing.memory,
        "first_run": measured.first,
        "same": difference.same,
        "max_absolute_error": difference.max_absolute,
        "max_relative_error": difference.max_relative,
    }


def _show(console: Console, report: dict[str, Any]) -> None:
    batch = report["batch"]
    by_item = batch is not None and batch > 1
    items = [">items/s"] if by_item else []
    columns = (">median", ">p99", ">runs/s", *items, ">memory", ">first run", ">max difference")
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
        console.print("! differs by more than the tolerance (relative 1e-3, absolute 1e-5)")
    if not report["complete"]:
        console.print("interrupted: these are the measurements so far")
