"""onward compare: run two models on the same feeds and compare outputs, latency and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
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
)
from onward.cli.progress import WorkProgress
from onward.errors import OptionError
from onward.formatting import show_bytes, show_count, show_seconds
from onward.lazy import LazyModule
from onward.measure.alternating_trials import LIMIT, MeasuredCandidate, measure_in_turns
from onward.measure.tensor_difference import Tolerance
from onward.measure.tuning.trials import Candidate
from onward.providers.choose import available
from onward.sessions.feed_files import inputs_of, read_feeds

if TYPE_CHECKING:
    from onward.graph import summary
    from onward.measure import comparison as comparing
    from onward.measure.comparison import Compared, Comparison
    from onward.providers import model_sources
else:  # completion in the shell must not wait for them
    summary = LazyModule("onward.graph.summary")
    comparing = LazyModule("onward.measure.comparison")
    model_sources = LazyModule("onward.providers.model_sources")

DIFFERENT = 1  # the exit code


def compare(
    model: arguments.Model,
    other: arguments.Model,
    files: arguments.FeedFiles = None,
    feed: arguments.Feeds = None,
    feeds: Annotated[
        list[str] | None,
        typer.Option(
            "--feeds",
            metavar="FILE[,FILE]...",
            help="Another set of feeds: files separated by commas. Repeat it for several sets.",
            autocompletion=arguments.complete_feeds,
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Number of sets of random feeds.")
    ] = 1,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="NAME=OTHER",
            help="An input or output of the first model, and its name in the second.",
        ),
    ] = None,
    size: arguments.Sizes = None,
    seed: arguments.Seed = 0,
    provider: arguments.Providers = None,
    threads: arguments.Threads = 0,
    rtol: Annotated[float, typer.Option(min=0, help="Relative tolerance.")] = 1e-3,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance.")] = 1e-5,
    every: Annotated[
        bool, typer.Option("--all", help="Compare every value that both models compute.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(min=0, help="Seconds to measure each model's latency; 0: do not measure."),
    ] = 1.0,
    limit: arguments.Limit = LIMIT,
    as_json: arguments.Json = False,
) -> None:
    """Compare two models: outputs, latency, size.

    The second is typically the first after optimisation, quantisation or conversion. If their
    outputs differ, the first intermediate value that differs is named. Exit code 1: they differ by
    more than the tolerance. Feeds are random where no file is given. With several sets of feeds,
    the largest differences are shown. Inputs and outputs are paired by name, then by position, or
    by --map.

    \b
    onward compare model.onnx model.int8.onnx --rtol 0.05
    onward compare model.onnx model.int8.onnx --samples 20
    onward compare model.onnx converted.onnx --map image=x --map scores=y
    onward compare model.onnx converted.onnx feeds.npz --all
    """
    asked = arguments.read_providers(provider)
    names, sizes = _read_pairs(pairs), arguments.read_sizes(size)
    sets = [text.split(",") for text in feeds or ()]
    paths = arguments.feed_paths(files, feed)
    sets = [paths, *sets] if paths or not sets else sets
    inputs = inputs_of(model)
    fed = [read_feeds(inputs, each, sizes, seed + n) for each in sets for n in range(samples)]
    tolerance = Tolerance(rtol, atol)
    comparison = comparing.compare_models(
        model, other, fed, names=names, tolerance=tolerance, providers=asked or None, every=every
    )
    console = make_console(stderr=as_json)
    first = asked[0] if asked else (available()[0], {})
    candidate = Candidate(first[0], threads, first[1])
    measured = [
        MeasuredCandidate(model, candidate, fed[0]),
        MeasuredCandidate(other, candidate, comparing.feeds_for_other(model, other, fed[0], names)),
    ]
    interrupted = False
    if seconds:
        with WorkProgress() as progress:
            interrupted = measure_in_turns(measured, seconds, limit, progress.show_step)
    report = {
        "same": comparison.same,
        "samples": comparison.samples,
        "tolerance": asdict(tolerance),
        "notes": comparison.notes,
        "outputs": [asdict(output) for output in comparison.outputs],
        "first_difference": None if comparison.first is None else asdict(comparison.first),
        "values_that_agree_before": comparison.agreed,
        "values": [asdict(value) for value in comparison.values] if every else None,
        "models": [_model_facts(each) for each in measured],
        "provider": first[0],
    }
    if as_json:
        print_json(report)
    else:
        _show(console, report, comparison, every)
    if interrupted:
        raise typer.Exit(130)
    if not comparison.same:
        raise typer.Exit(DIFFERENT)


def _read_pairs(texts: list[str] | None) -> dict[str, str]:
    """Read pairs: image=x as {"image": "x"}."""
    pairs = {}
    for text in texts or ():
        name, equals, other = text.partition("=")
        if not (name and equals and other):
            raise OptionError(f"--map takes NAME=OTHER, such as image=x, not {text!r}")
        pairs[name] = other
    return pairs


def _model_facts(measured: MeasuredCandidate) -> dict[str, Any]:
    facts = summary.summarize(model_sources.open_model(measured.model))
    timing = measured.timing
    return {
        "file": str(measured.model),
        "bytes": summary.file_bytes(Path(measured.model), facts),
        "weights": facts.weights.elements,
        "weight_bytes": facts.weights.bytes,
        "nodes": facts.nodes,
        "opsets": facts.opsets,
        "median": timing.median if timing else None,
        "p99": timing.p99 if timing else None,
        "memory": timing.memory if timing else None,
        "error": measured.error or None,
    }


def _show(console: Console, report: Mapping[str, Any], comparison: Comparison, every: bool) -> None:
    for note in comparison.notes:
        console.print(note, style="dim")
    print_table(console, _models_table(report))
    sets = (
        f", the largest differences of {comparison.samples} sets of feeds"
        if comparison.samples > 1
        else ""
    )
    print_table(console, _values_table(comparison.outputs), f"outputs{sets}")
    if every:
        print_table(
            console, _values_table(comparison.values), "every value that both models compute"
        )
    limits = report["tolerance"]
    tolerance = f"relative {limits['relative']:g}, absolute {limits['absolute']:g}"
    if comparison.same:
        console.print(f"the models agree within the tolerance ({tolerance})", style="green")
        return
    console.print(f"the models differ by more than the tolerance ({tolerance})", style="red")
    if comparison.first is None:
        console.print(f"all {comparison.agreed} intermediate values that both compute agree")
        return
    value = comparison.first
    console.print(
        f"first different value: {value.name!r} of {value.node} in the first model", soft_wrap=True
    )
    console.print(
        f"and {value.other!r} of {value.other_node} in the second: {_describe_difference(value)}"
    )
    console.print(f"{comparison.agreed} values before it agree")


def _models_table(report: Mapping[str, Any]) -> Any:
    table = make_table(
        "model", ">file", ">weights", ">nodes", "opset", ">median", ">p99", ">memory"
    )
    for facts in report["models"]:
        times = [show_seconds(facts[key]) if facts[key] else "" for key in ("median", "p99")]
        table.add_row(
            facts["file"],
            show_bytes(facts["bytes"]),
            f"{show_count(facts['weights'])}, {show_bytes(facts['weight_bytes'])}",
            f"{facts['nodes']:,}",
            str(facts["opsets"].get("ai.onnx", "")),
            *times,
            show_bytes(facts["memory"]) if facts["memory"] else facts["error"] or "",
        )
    return table


def _values_table(values: list[Compared]) -> Any:
    table = make_table(
        "value",
        "computed by",
        ">max error",
        ">relative",
        ">cosine",
        ">SNR",
        ">beyond tolerance",
        "worst element",
        "",
    )
    for value in values:
        difference = value.difference
        name = value.name if value.name == value.other else f"{value.name} / {value.other}"
        if difference.reason:
            table.add_row(name, value.node, *[""] * 5, difference.reason, "differs")
            continue
        worst = f"{list(difference.worst)}: {' / '.join(difference.values)}"
        table.add_row(
            name,
            value.node,
            f"{difference.max_absolute:.2e}",
            f"{difference.max_relative:.2e}",
            "" if difference.cosine is None else f"{difference.cosine:.6f}",
            "" if difference.snr is None else f"{difference.snr:.1f} dB",
            f"{difference.beyond:,} of {difference.elements:,}",
            worst if difference.max_absolute else "",
            "same" if difference.same else "differs",
        )
    return table


def _describe_difference(value: Compared) -> str:
    difference = value.difference
    if difference.reason:
        return difference.reason
    return (
        f"{difference.values[0]} against {difference.values[1]} at {list(difference.worst)}, "
        f"{difference.beyond:,} of {difference.elements:,} elements beyond the tolerance"
    )
