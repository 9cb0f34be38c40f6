"""onward early-exit: add exits to a classifier, so that easy samples leave early."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import arguments
from onward.cli.compression_files import check_files, finish
from onward.cli.progress import WorkProgress
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.compress.early_exits import add_exits as exits
else:  # it loads the engines
    exits = LazyModule("onward.compress.early_exits.add_exits")


def early_exit(
    model: arguments.Model,
    at: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="An inner value, or its node. Repeat it for several."),
    ],
    data: Annotated[
        str, typer.Option(help="Rows to train and check the exits with: .npz, .csv, a folder, ...")
    ],
    target: Annotated[
        str | None,
        typer.Option(help="The column of the labels; without it, exits learn the model's answers."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="The scores that exits answer; else the first output.")
    ] = None,
    drop: Annotated[
        str, typer.Option(help="The points of accuracy that may be lost: 0.2% or 0.002.")
    ] = "0.2%",
    together: Annotated[
        bool, typer.Option(help="Train the network together with its exits.")
    ] = False,
    criterion: Annotated[
        str, typer.Option(help="When a sample is sure: max_softmax, entropy or margin.")
    ] = "max_softmax",
    head: Annotated[
        str, typer.Option(help="mean over pixels or tokens, first token, or auto.")
    ] = "auto",
    hidden: Annotated[int, typer.Option(help="Units of a hidden layer in each head.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Steps of training.")] = None,
    seconds: Annotated[float | None, typer.Option(help="At most so long a training.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows of a batch of the data, and of the timing.")
    ] = None,
    exit_output: Annotated[
        bool, typer.Option(help="Add the output `exit`: which exit each row took.")
    ] = True,
    save: Annotated[Path | None, typer.Option(help="The file for the model with exits.")] = None,
    page: Annotated[Path | None, typer.Option(help="A file for the report as HTML.")] = None,
    force: Annotated[bool, typer.Option(help="Save the model even if it did not help.")] = False,
    seed: arguments.Seed = 0,
    as_json: arguments.Json = False,
) -> None:
    """Add exits to a classifier: samples that are easy leave early, the others go on.

    If no row can leave within the budget, or it is not faster, the exit code is 1 and no model is
    saved; --force saves it, with exit code 0.

    \b
    onward early-exit model.onnx --at NAME --data rows.npz --target label --drop 0.2% --save e.onnx
    """
    check_files(model, save, page)
    with WorkProgress() as work:
        report = exits.add_exits(
            model,
            at,
            output=output,
            data=data,
            target=target,
            drop=drop,
            frozen=not together,
            criterion=criterion,
            head=head,
            hidden=hidden,
            exit_output=exit_output,
            steps=steps,
            seconds=seconds,
            batch=batch,
            seed=seed,
            progress=work.show_step,
        )
    finish(report, save, page, force, as_json)
