"""onward prune: remove whole channels, heads, units and layers from a model, as measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import arguments
from onward.cli.compression_files import check_files, finish
from onward.cli.console import make_console, warn
from onward.cli.progress import WorkProgress
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.compress.pruning import prune as pruning
else:  # it loads the engines
    pruning = LazyModule("onward.compress.pruning.prune")


def prune(
    model: arguments.Model,
    data: Annotated[
        str | None, typer.Option(help="Rows or feeds to measure and tune with: .npz, .csv, ...")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="The share of the units that stays; 0.5 by default.")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="How many times as fast it has to become.")
    ] = None,
    macs: Annotated[
        str | None, typer.Option(help="The multiplications that a run may have, such as 1G.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Residual blocks to remove, in addition.")] = 0,
    pattern: Annotated[
        str | None, typer.Option(help="Only set weights to zero, such as 2:4; no CPU is faster.")
    ] = None,
    sparsity: Annotated[
        float | None, typer.Option(help="Only set this share of the weights to zero.")
    ] = None,
    importance: Annotated[
        str, typer.Option(help="What decides: magnitude, activation (needs data) or gradient.")
    ] = "magnitude",
    target: Annotated[
        str | None, typer.Option(help="The column of the data with the metric's targets.")
    ] = None,
    metric: arguments.OwnOrNamedMetric = None,
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            "-p",
            help="The provider that will run the model.",
            autocompletion=arguments.complete_providers,
        ),
    ] = "cpu",
    multiple: Annotated[int, typer.Option(help="Sizes are multiples of this.")] = 8,
    tune: Annotated[
        str | None, typer.Option(help="Recover by distillation for this time, such as 5min.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Prune only these: a weight, or channels, heads, units, recurrent."),
    ] = None,
    protect: Annotated[
        list[str] | None, typer.Option(help="Leave these as they are: as for --only.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows of a batch of data.")] = None,
    limit: Annotated[int | None, typer.Option(help="Batches of data to read at most.")] = None,
    save: Annotated[Path | None, typer.Option(help="The file for the pruned model.")] = None,
    page: Annotated[Path | None, typer.Option(help="A file for the report as HTML.")] = None,
    force: Annotated[
        bool, typer.Option(help="Save the best model that was found even if the goal was not met.")
    ] = False,
    seed: arguments.Seed = 0,
    as_json: arguments.Json = False,
) -> None:
    """Remove the channels, heads, units and layers that a model's outputs need least.

    If the goal cannot be met, the exit code is 1 and no model is saved; --force saves the best one
    found, with exit code 0. Ctrl-C while tuning keeps its state next to --save; the same command
    continues.

    \b
    onward prune model.onnx --keep 0.5 --data rows.npz --tune 5min --save pruned.onnx
    onward prune model.onnx --speedup 1.5 --data rows.npz --importance activation --save fast.onnx
    """
    check_files(model, save, page)
    folder = save.with_name(f"{save.name}.tuning") if save is not None and tune else None
    try:
        with WorkProgress() as work:
            report = pruning.prune(
                model,
                data,
                keep=keep,
                speedup=speedup,
                macs=macs,
                layers=layers,
                pattern=pattern,
                sparsity=sparsity,
                importance=importance,
                target=target,
                metric=arguments.read_metric(metric),
                provider=provider,
                multiple=multiple,
                tune=tune,
                only=only or (),
                protect=protect or (),
                batch=batch,
                limit=limit,
                folder=folder,
                seed=seed,
                progress=work.show_step,
            )
    except KeyboardInterrupt:
        if folder is not None and folder.exists():
            warn(
                make_console(stderr=True),
                f"interrupted; the same command continues from {folder}",
            )
        raise
    if folder is not None and folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
    finish(report, save, page, force, as_json)
