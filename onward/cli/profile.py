"""onward profile: show where the time of a run goes, and what bounds it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.console import (
    make_console,
    make_table,
    print_json,
    print_pairs,
    print_table,
)
from onward.cli.progress import WorkProgress
from onward.errors import OptionError, WorkerDied
from onward.formatting import show_bytes, show_count, show_seconds
from onward.graph.paths import check_writable
from onward.workers.worker import Worker

_SHOWN = 12  # operators in the table
_STEPS = {"opening the model": 0.0, "timing": 0.05, "profiling": 0.4}
_LAST = 0.8  # where the ceilings begin
_KINDS = {"compute": "compute", "memory": "memory bandwidth", "io": "I/O", "waiting": "waiting"}


def profile(
    model: arguments.Model,
    files: arguments.FeedFiles = None,
    feed: arguments.Feeds = None,
    size: arguments.Sizes = None,
    seed: arguments.Seed = 0,
    provider: arguments.Providers = None,
    threads: arguments.Threads = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Runs to measure.")] = 20,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=1, help="Runs before those, not measured.")
    ] = 3,
    span: Annotated[
        str | None,
        typer.Option("--range", metavar="FIRST:LAST", help="Iterations to analyse, such as 5:15."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for chrome://tracing or ui.perfetto.dev.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write a page with plots: one HTML file, no network.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure this machine's ceilings again.")
    ] = False,
    as_json: arguments.Json = False,
) -> None:
    """Show where the time of a run goes, operator by operator, and what bounds it.

    Times, FLOP/s and bytes/s are compared with the ceilings of this machine, which are measured
    once with the provider's own kernels and kept. Ctrl-C ends the measuring early and keeps the
    measurements so far. Feeds are random where no file is given.

    \b
    onward profile model.onnx --page profile.html
    onward profile model.onnx --size batch=8 --provider torch --range 5:15 --trace trace.json
    """
    request = {
        "model": str(model),
        "feeds": arguments.feed_paths(files, feed),
        "sizes": arguments.read_sizes(size),
        "seed": seed,
        "providers": arguments.read_providers(provider),
        "threads": threads,
        "iterations": iterations,
        "warm_up": warm_up,
        "between": _read_range(span, iterations),
        "fresh": fresh,
        "trace": None if trace is None else str(trace),
        "page": None if page is None else str(page),
    }
    for path in filter(None, (trace, page)):
        check_writable(path)
    console = make_console(stderr=as_json)
    found = _profile_in_child(request)
    if as_json:
        print_json(found)
        return
    _show(console, found)
    for path in filter(None, (trace, page)):
        console.print(f"written: {path}")


def _read_range(text: str | None, iterations: int) -> list[int]:
    """Read FIRST:LAST; an empty side is the first or the last iteration."""
    if text is None:
        return [0, iterations]
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() for part in (first, last) if part):
        raise OptionError(f"--range takes FIRST:LAST, such as 5:15, not {text!r}")
    return [int(first or 0), int(last or iterations)]


# -- the measuring process ------------------------------------------------------------------------


def _profile_in_child(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in a process where no other engine's threads run.

    The first Ctrl-C ends the measuring early, and the child sends what it has; the second kills it.
    """
    with Worker("onward.measure.profile_worker", "the profile") as worker, WorkProgress() as work:
        work.show_step("starting", 0, 1)

        def show(doing: str, part: float) -> None:
            begin = _STEPS.get(doing, _LAST)
            work.show_step(doing, begin + part * (0.35 if begin in (0.05, 0.4) else 0), 1)

        interrupts = 0

        def interrupt(*_: object) -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts == 1:
                worker.interrupt(kill_after=None)
            else:
                worker.kill()

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            doing = "measured the model"
            return worker.ask({"do": "profile", **request}, doing=doing, progress=show)[0]
        except WorkerDied:
            if interrupts:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, before)


# -- printing -------------------------------------------------------------------------------------


def _show(console: Console, found: Mapping[str, Any]) -> None:
    table = make_table(
        "operator", ">nodes", ">time", ">share", ">FLOP/s", ">B/s", "bound by", ">of ceiling"
    )
    counts: dict[tuple[str, str], int] = {}
    for node in found["nodes"]:
        key = (node["provider"], node["operator"])
        counts[key] = counts.get(key, 0) + 1
    for row in found["operators"][:_SHOWN]:
        table.add_row(
            row["name"],
            str(counts[row["provider"], row["operator"]]),
            show_seconds(row["time"]),
            f"{row['share']:.1%}",
            show_count(row["flops_per_second"]),
            show_count(row["bytes_per_second"]),
            _KINDS[row["bound"]],
            f"{row['reached']:.0%}",
        )
    for name, share in _other_shares(found):
        table.add_row(name, "", "", f"{share:.1%}", "", "", "", "")
    title = f"{found['model']}: one run on {', '.join(found['providers'])}"
    print_table(console, table, title)
    latency = found["latency"]
    print_pairs(console, _facts(found, latency))
    console.print()
    console.print(found["verdict"]["sentence"], style="bold")
    console.print(found["verdict"]["advice"])
    for note in found["notes"]:
        console.print(f"note: {note}")


def _other_shares(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Shares of the run outside the shown operators: with them, the shares sum to 100 %."""
    more = found["operators"][_SHOWN:]
    rest = [(f"{len(more)} more operators (--json lists all)", sum(row["share"] for row in more))]
    rest.append(("between nodes", found["waiting"]["gaps between nodes"]))
    rest.append(("input and output", found["shares"]["io"]))
    return rest[0 if more else 1 :]


def _facts(found: Mapping[str, Any], latency: Mapping[str, float]) -> list[tuple[str, str]]:
    shares = ", ".join(f"{_KINDS[kind]} {share:.0%}" for kind, share in found["shares"].items())
    facts = [
        (
            "a run",
            f"{show_seconds(latency['typical'])} ({show_seconds(latency['fastest'])} to "
            f"{show_seconds(latency['slowest'])}), {show_count(found['flops'])}FLOP, "
            f"{show_bytes(found['bytes'])} moved",
        ),
        (
            "opening",
            f"{show_seconds(latency['opening'])}, first run {show_seconds(latency['first'])}",
        ),
        ("time", shares),
    ]
    for name, limits in found["ceilings"].items():
        rates = ", ".join(f"{show_count(r)}FLOP/s {kind}" for kind, r in limits["flops"].items())
        facts.append(
            (
                "ceilings",
                f"{name.removesuffix('ExecutionProvider')}, {found['threads']} threads: {rates}, "
                f"{show_count(limits['bytes_per_second'])}B/s, "
                f"{show_seconds(limits['dispatch'])} to dispatch a node",
            )
        )
    return facts
