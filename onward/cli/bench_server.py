"""onward bench --server: load a running server and print latencies, throughput and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from onward.cli.console import make_console, make_table, print_json, print_table, warn
from onward.cli.progress import WorkProgress
from onward.errors import OptionError
from onward.formatting import show_seconds
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.serving.load_test import (
        client_processes,
        infer_payloads,
        latency_plot,
        load_page,
        load_plan,
        load_report,
        request_feeds,
        server_model,
    )
else:  # they load httptools and uvloop, which only the extra `serve` installs
    client_processes = LazyModule("onward.serving.load_test.client_processes")
    infer_payloads = LazyModule("onward.serving.load_test.infer_payloads")
    latency_plot = LazyModule("onward.serving.load_test.latency_plot")
    load_page = LazyModule("onward.serving.load_test.load_page")
    load_plan = LazyModule("onward.serving.load_test.load_plan")
    load_report = LazyModule("onward.serving.load_test.load_report")
    request_feeds = LazyModule("onward.serving.load_test.request_feeds")
    server_model = LazyModule("onward.serving.load_test.server_model")

_RANDOM = 64  # different requests, where none are given
_CLOSED, _OPEN = 32, 512  # connections


@dataclass(frozen=True)
class ServerFlags:
    """The options of `onward bench --server`, as they were given."""

    url: str
    model: str | None
    requests: Path | None
    shapes: Sequence[str]
    form: str
    rate: float | None
    arrivals: str
    connections: int | None
    seconds: float
    warm_up: float
    processes: int
    timeout: float
    headers: Sequence[str]
    seed: int
    page: Path | None
    as_json: bool


def bench_server(flags: ServerFlags) -> None:
    """Load the server, and print the report; exit code 130 after Ctrl-C, 1 without an answer."""
    try:
        client_processes.run_load  # noqa: B018 (imports it)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"--server needs {error.name}\ninstall it with: pip install 'onward[serve]'"
        ) from error
    headers = _read_headers(flags.headers)
    found = server_model.find_model(flags.url, flags.model, headers)
    if flags.requests is not None:
        feeds = request_feeds.read_feeds(flags.requests, found.inputs)
    else:
        shapes = read_shapes(flags.shapes)
        feeds = request_feeds.random_feeds(found.inputs, shapes, _RANDOM, flags.seed)
    form = _read_form(flags.form)
    payloads = [
        infer_payloads.infer_payload(flags.url, found.name, each, form, headers=headers)
        for each in feeds
    ]
    plan = _make_plan(flags)
    with WorkProgress() as progress:

        def show(seconds: float, figures: Any) -> None:
            p99 = show_seconds(figures.latencies.percentile(99))
            line = f"{figures.outcomes.total():,} requests, {figures.throughput:,.0f}/s, p99 {p99}"
            progress.show_step(line, seconds, plan.total_seconds)

        progress.show_step("loading the server", 0, plan.total_seconds)
        figures = client_processes.run_load(plan, payloads, flags.processes, show)
    sent_as = "gRPC" if flags.url.startswith("grpc") else f"HTTP {form}"
    report = load_report.make_report(plan, found.name, sent_as, figures)
    if flags.page is not None:
        flags.page.write_text(load_page.render_load_page(report, figures), "utf-8")
    if flags.as_json:
        print_json(report)
    else:
        _show(make_console(), report, figures)
    if not figures.is_complete:
        raise typer.Exit(130)
    if not figures.latencies.count:
        reason = server_model.read_refusal(flags.url, payloads[0])
        if reason:
            warn(make_console(stderr=True), f"the server refuses the requests: {reason}")
        raise typer.Exit(1)


def _make_plan(flags: ServerFlags) -> load_plan.LoadPlan:
    if flags.arrivals not in ("poisson", "constant"):
        raise OptionError(f"--arrivals is poisson or constant, not {flags.arrivals!r}")
    usual = _CLOSED if flags.rate is None else _OPEN
    return load_plan.LoadPlan(
        url=flags.url,
        seconds=flags.seconds,
        warm_up=flags.warm_up,
        connections=usual if flags.connections is None else flags.connections,
        rate=flags.rate,
        arrivals="constant" if flags.arrivals == "constant" else "poisson",
        timeout=flags.timeout,
        seed=flags.seed,
    )


def _read_form(text: str) -> infer_payloads.Form:
    if text not in ("binary", "json"):
        raise OptionError(f"--form is binary or json, not {text!r}")
    return "json" if text == "json" else "binary"


def read_shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Read shapes: tokens=1,128.

    >>> read_shapes(["tokens=1,128", "n="])
    {'tokens': [1, 128], 'n': []}
    """
    shapes = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.split(",") if part.strip()]
        if not equals or not name or not all(part.isdecimal() for part in parts):
            raise OptionError(f"--shape takes NAME=SIZES, such as tokens=1,128, not {text!r}")
        shapes[name] = [int(part) for part in parts]
    return shapes


def _read_headers(texts: Sequence[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or "\n" in text or "\r" in text:
            raise OptionError(f"--header takes NAME: TEXT, not {text!r}")
        headers[name.strip()] = value.strip()
    return headers


def _show(console: Console, report: dict[str, Any], figures: Any) -> None:
    console.print(f"{report['model']} at {report['server']}", style="bold")
    console.print(load_page.describe_load(report))
    latency = report["latency"]
    if latency:
        names = ["p50", "p90", "p99", "p99.9", "max", "mean"]
        table = make_table(">answers/s", *(f">{name}" for name in names))
        cells = [show_seconds(latency[name]) for name in names]
        table.add_row(f"{report['throughput']:,.1f}", *cells)
        print_table(console, table)
        for line in latency_plot.draw_bars(figures.latencies):
            console.print(line, soft_wrap=True)
        console.print()
    answers = ", ".join(f"{count:,} x {name}" for name, count in report["outcomes"].items())
    console.print(f"answers: {answers or 'none'}")
    if report["error_latency"]:
        typical = show_seconds(report["error_latency"]["p50"])
        console.print(f"errors came after {typical} (median)", style="red")
    for text in report["warnings"]:
        warn(console, text)
    if not report["complete"]:
        console.print("interrupted: these are the measurements so far")
