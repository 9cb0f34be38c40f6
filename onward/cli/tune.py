"""onward tune: measure ahead of time which way of running a model is fastest here."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.feeds import read_feeds
from onward.cli.screen import (
    make_console,
    make_progress,
    make_table,
    print_json,
    print_table,
    show_bytes,
    show_seconds,
)
from onward.errors import WriteFailed
from onward.sessions.inference import InferenceSession
from onward.sessions.machine import cache_folder
from onward.sessions.tuning.verdicts import TuningOptions, Verdict
from onward.sessions.tuning.verdicts import tune as measure


def tune(
    model: arguments.Model,
    feed: arguments.Feeds = None,
    size: arguments.Sizes = None,
    provider: arguments.Providers = None,
    threads: arguments.Threads = 0,
    seconds: Annotated[float, typer.Option(help="Of one turn of one candidate.")] = 0.4,
    precision: Annotated[
        str, typer.Option(help="f16 or bf16 let candidates compute in less than f32.")
    ] = "f32",
    fresh: Annotated[bool, typer.Option(help="Measure even where a verdict is known.")] = False,
    folder: Annotated[
        str | None, typer.Option(help="Where verdicts are kept; the user's cache if not given.")
    ] = None,
    seed: arguments.Seed = 0,
    as_json: arguments.Json = False,
) -> None:
    """Measure which way of running a model is fastest here, and remember it.

    Sessions opened with providers="auto" then start with the verdict at once.

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
    )
    inputs = InferenceSession(model).get_inputs()
    feeds = read_feeds(inputs, feed or [], arguments.read_sizes(size), seed)
    verdict = _measured(model, feeds, options, console)
    if as_json:
        print_json(verdict.to_json())
    else:
        _show(verdict, console)
    if not verdict.kept:
        raise WriteFailed(
            f"the verdict could not be kept in {folder or cache_folder('tuning')}\n"
            "measure again with a --folder that can be written to"
        )
    if not as_json and verdict.rows and not verdict.rows[0].error:
        auto = '"auto"' if folder is None else f'[("auto", {{"folder": {json.dumps(folder)}}})]'
        text = f"InferenceSession(model, providers={auto}) takes it from here."
        console.print(text, markup=False)


def _measured(
    model: os.PathLike[str], feeds: dict[str, Any], options: TuningOptions, console: Console
) -> Verdict:
    with make_progress(console) as progress:
        task = progress.add_task("opening", total=None)

        def tell(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what)

        return measure(model, feeds, options, progress=tell, must_keep=True)


def _show(verdict: Verdict, console: Console) -> None:
    shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in verdict.shapes.items())
    table = make_table("way", ">median", ">p99", ">ready", ">memory", "")
    for place, row in enumerate(verdict.rows):
        if row.error:
            table.add_row(str(row.candidate), "", "", "", "", row.error)
            continue
        figures = map(show_seconds, (row.median, row.p99, row.first))
        mark = "fastest" if place == 0 else ""
        table.add_row(str(row.candidate), *figures, show_bytes(row.memory), mark)
    print_table(console, table, f"measured {verdict.measured} on {shapes}")
