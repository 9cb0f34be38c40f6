"""onward run: run a model once, show its outputs and save them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.console import (
    make_console,
    make_table,
    print_json,
    print_table,
    show_shape,
    warn,
)
from onward.cli.output_files import (
    check_target,
    count_non_finite,
    describe,
    top_classes,
    write_outputs,
)
from onward.errors import OptionError, ProviderError
from onward.formatting import show_seconds
from onward.lazy import LazyModule
from onward.message_text import suggest_names
from onward.providers.options import SessionOptions
from onward.providers.provider_names import short_name
from onward.sessions.feed_files import declared_inputs, names_of_sizes, read_feeds
from onward.sessions.image_feeds import Preparation
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.runner.plan import prepared_feeds
else:  # loaded when files are given
    prepared_feeds = LazyModule("onward.runner.plan.prepared_feeds")

_ANSWERS = 8  # rows whose class is shown


def run(
    model: arguments.Model,
    files: arguments.FeedFiles = None,
    feed: arguments.Feeds = None,
    random: Annotated[bool, typer.Option("--random", help="Feed random tensors.")] = False,
    size: arguments.Sizes = None,
    seed: arguments.Seed = 0,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="NAME=FILE", help="Save one output: .npy or .json."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Save every output: .npz or .json.")
    ] = None,
    provider: arguments.Providers = None,
    threads: arguments.Threads = 0,
    top: Annotated[
        int, typer.Option("--top", min=0, help="Show the N largest values along the last axis.")
    ] = 0,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of timed runs.")] = 1,
    mean: Annotated[str, typer.Option(help="Images: subtract this, e.g. 0.485,0.456,0.406.")] = "",
    std: Annotated[str, typer.Option(help="Images: divide by this, e.g. 0.229,0.224,0.225.")] = "",
    scale: Annotated[float, typer.Option(help="Images: divide bytes by this first.")] = 255.0,
    as_json: arguments.Json = False,
) -> None:
    """Run a model once and show its outputs.

    \b
    onward run model.onnx --random --size batch=4
    onward run model.onnx feeds.npz --save outputs.npz
    onward run model.onnx --feed image=cat.png --top 5
    onward run trained.onnx rows.csv --top 1
    """
    targets = _read_targets(output, save)
    preparation = Preparation(scale, _read_numbers("--mean", mean), _read_numbers("--std", std))
    asked, sizes = arguments.read_providers(provider), arguments.read_sizes(size)
    paths, notes = arguments.feed_paths(files, feed), list[str]()
    prepared = prepared_feeds.prepare_feeds(model, paths) if paths and not random else None
    decoded = None if prepared is None else prepared.preprocessing

    def read(inputs: Sequence[Any]) -> dict[str, Any]:
        return read_feeds(
            inputs, paths, sizes, seed, random=random, preparation=preparation, notes=notes
        )

    if prepared is not None:
        feeds: dict[str, Any] | None = prepared.feeds
        notes.append(prepared.note)
    else:  # checked before an engine is loaded
        declared = declared_inputs(model)
        feeds = None if declared is None else read(declared)
    # an engine's own log would repeat the error that is printed in one line
    options = SessionOptions(intra_op_num_threads=threads, log_severity_level=4)
    session = InferenceSession(model, options, asked or None)
    feeds = read(session.get_inputs()) if feeds is None else feeds
    names = [arg.name for arg in session.get_outputs()]
    for name in filter(None, targets):
        if name not in names:
            raise OptionError(
                f"no output {name!r}; {suggest_names(name, names, 'the outputs are')}"
            )
    results, times = _run(session, feeds, repeat, random and not sizes)
    outputs = dict(zip(names, results, strict=True))
    for name, path in targets.items():
        write_outputs(path, outputs if name == "" else {name: outputs[name]}, one=name != "")
    report = {
        "model": str(model),
        "providers": session.get_providers(),
        "feeds": {name: describe(tensor, 0) for name, tensor in feeds.items()},
        "seconds": statistics.median(times),
        "runs": repeat,
        "outputs": {name: describe(tensor, top) for name, tensor in outputs.items()},
    }
    answers = [] if decoded is None else decoded.decode(outputs)
    if answers:
        report["answers"] = answers
    if as_json:
        print_json(report)
        return
    classes = {} if decoded is None else {str(decoded.output): decoded.classes}
    _show(make_console(), report, outputs, notes, top, classes)


def _run(
    session: InferenceSession, feeds: dict[str, Any], repeat: int, sizes_are_default: bool
) -> tuple[list[Any], list[float]]:
    times: list[float] = []
    results: list[Any] = []
    for _ in range(repeat):
        start = time.perf_counter()
        try:
            results = session.run(None, feeds)
        except ProviderError as error:
            names = ", ".join(sorted(names_of_sizes(session.get_inputs())))
            if not sizes_are_default or not names:
                raise
            raise ProviderError(
                f"{error}\ndynamic dimensions are 1 by default; set them with --size ({names})"
            ) from error
        times.append(time.perf_counter() - start)
    return results, times


def _read_targets(output: list[str] | None, save: Path | None) -> dict[str, Path]:
    """Which output is saved to which file; "" is all of them."""
    targets: dict[str, Path] = {}
    for text in output or ():
        name, equals, path = text.rpartition("=")
        if not equals or not name:
            raise OptionError(f"--output takes NAME=FILE, such as y=y.npy, not {text!r}")
        targets[name] = check_target(Path(path).expanduser(), (".npy", ".json"))
    if save is not None:
        targets[""] = check_target(save.expanduser(), (".npz", ".json"))
    return targets


def _read_numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise OptionError(f"{option} takes numbers separated by commas, not {text!r}") from None


def _show(
    console: Console,
    report: dict[str, Any],
    outputs: dict[str, Any],
    notes: list[str],
    top: int,
    classes: Mapping[str, Sequence[Any]],
) -> None:
    for note in notes:
        console.print(note, style="dim")
    table = make_table("output", "type", "shape", ">min", ">mean", ">max", "first values")
    for name, facts in report["outputs"].items():
        numbers = [f"{facts[key]:.5g}" if key in facts else "" for key in ("min", "mean", "max")]
        table.add_row(name, facts["dtype"], show_shape(facts["shape"]), *numbers, facts["first"])
    console.print(table)
    if answers := report.get("answers"):
        shown = ", ".join(map(str, answers[:_ANSWERS])) + (", ..." * (len(answers) > _ANSWERS))
        console.print(f"answers: {shown}", markup=False)
    if top:
        _show_top(console, outputs, top, classes)
    runs = f"{report['runs']} runs, median" if report["runs"] > 1 else "1 run"
    engines = ", ".join(map(short_name, report["providers"]))
    console.print(f"{runs} {show_seconds(report['seconds'])} on {engines}")
    for name, tensor in outputs.items():
        if non_finite := count_non_finite(tensor):
            warn(console, f"output {name!r} has {non_finite}")


def _show_top(
    console: Console, outputs: dict[str, Any], top: int, classes: Mapping[str, Sequence[Any]]
) -> None:
    for name, tensor in outputs.items():
        rows = top_classes(tensor, top)
        if not rows:
            continue
        table = make_table("row", ">class", ">value")
        names = classes.get(name, ())
        for row, best in enumerate(rows):
            for place, (index, value) in enumerate(best):
                table.add_row(
                    str(row) if place == 0 else "",
                    str(names[index]) if index < len(names) else str(index),
                    f"{value:.5g}",
                )
        print_table(console, table, f"{name}: the largest values along the last axis")
