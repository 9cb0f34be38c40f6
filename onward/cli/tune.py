"""onward tune: measure ahead of time which provider and settings run a model fastest."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.console import (
    make_console,
    make_table,
    print_json,
    print_table,
)
from onward.cli.progress import WorkProgress
from onward.errors import WriteFailed
from onward.formatting import show_bytes, show_seconds
from onward.measure.machine import cache_folder
from onward.measure.tuning.tune import tune as measure
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import Row, TuningResult
from onward.sessions.feed_files import inputs_of, read_feeds


def tune(
    model: arguments.Model,
    feed: arguments.Feeds = None,
    size: arguments.Sizes = None,
    provider: arguments.Providers = None,
    threads: arguments.Threads = 0,
    seconds: Annotated[float, typer.Option(help="Seconds of one turn of one candidate.")] = 0.4,
    precision: Annotated[
        str, typer.Option(help="f16 or bf16 allow candidates to compute with less than f32.")
    ] = "f32",
    fresh: Annotated[bool, typer.Option(help="Measure again even if a result is stored.")] = False,
    folder: Annotated[
        str | None, typer.Option(help="The folder for results; the user's cache if not given.")
    ] = None,
    limit: arguments.Limit = TuningOptions.limit,
    seed: arguments.Seed = 0,
    as_json: arguments.Json = False,
) -> None:
    """Measure which provider and settings run a model fastest here, and store the result.

    Sessions opened with providers="auto" then start with this result at once. A candidate that is
    not ready within --limit is excluded. Ctrl-C prints the measurements so far and stores nothing.

    \b
    onward tune model.onnx --size batch=8
    """
    console = make_console(stderr=as_json)
    names = [name for name, _ in arguments.read_providers(provider)]
    options = TuningOptions(
        seconds=seconds,
        precision=precision,
        providers=names or None,
        folder=folder,
        fresh=fresh,
        threads=threads,
        limit=limit,
    )
    feeds = read_feeds(inputs_of(model), feed or [], arguments.read_sizes(size), seed)
    rows: list[Row] = []
    try:
        result = _tune_with_progress(model, feeds, options, rows)
    except KeyboardInterrupt:
        if as_json:
            print_json({"complete": False, "rows": [asdict(row) for row in rows]})
        _show_rows(rows, "interrupted: these are the measurements so far", console)
        raise
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, console)
    if not result.kept:
        raise WriteFailed(
            f"the result could not be stored in {folder or cache_folder('tuning')}\n"
            "measure again with a --folder that is writable"
        )
    if not as_json and result.rows and not result.rows[0].error:
        auto = '"auto"' if folder is None else f'[("auto", {{"folder": {json.dumps(folder)}}})]'
        text = f"InferenceSession(model, providers={auto}) uses this result."
        console.print(text, markup=False)


def _tune_with_progress(
    model: os.PathLike[str], feeds: dict[str, Any], options: TuningOptions, rows: list[Row]
) -> TuningResult:
    with WorkProgress() as work:

        def show(done: int, total: int, what: str) -> None:
            work.show_step(f"trying {what} (at most {options.limit:g} s)", done, total)

        return measure(model, feeds, options, progress=show, finished=rows.append, must_keep=True)


def _show(result: TuningResult, console: Console) -> None:
    shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in result.shapes.items())
    _show_rows(result.rows, f"measured {result.measured} on {shapes}", console, "fastest")


def _show_rows(rows: Sequence[Row], title: str, console: Console, first: str = "") -> None:
    table = make_table("candidate", ">median", ">p99", ">ready", ">memory", "")
    for place, row in enumerate(rows):
        if row.error:
            table.add_row(str(row.candidate), "", "", "", "", row.error)
            continue
        figures = map(show_seconds, (row.median, row.p99, row.first))
        mark = first if place == 0 else ""
        table.add_row(str(row.candidate), *figures, show_bytes(row.memory), mark)
    print_table(console, table, title)
