"""onward quantize: make a model smaller and faster with integers or 16 bits, as measured."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import arguments
from onward.cli.compression_files import check_files, finish
from onward.cli.console import make_console, warn
from onward.cli.progress import WorkProgress
from onward.errors import OptionError
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.compress.learned_rounding import tune_settings
    from onward.compress.learned_rounding.tune_settings import Tune
    from onward.compress.quantization import quantize as quantization
else:  # they load the engines and the losses
    tune_settings = LazyModule("onward.compress.learned_rounding.tune_settings")
    quantization = LazyModule("onward.compress.quantization.quantize")


def quantize(
    model: arguments.Model,
    data: Annotated[
        str | None,
        typer.Option(help="Rows or feeds to calibrate and measure with: .npz, .csv, a folder, ..."),
    ] = None,
    to: Annotated[
        str, typer.Option(help="int8, int4, int2, fp16, bf16, or auto: the best of several.")
    ] = "int8",
    drop: Annotated[
        str, typer.Option(help="The share of the metric, or of similarity, that may be lost.")
    ] = "1%",
    metric: arguments.OwnOrNamedMetric = None,
    target: Annotated[
        str | None, typer.Option(help="The column of the data with the metric's targets.")
    ] = None,
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            "-p",
            help="The provider that will run the model: cpu, openvino; auto: the fastest.",
            autocompletion=arguments.complete_providers,
        ),
    ] = "cpu",
    bits: Annotated[
        float | None, typer.Option(help="The average bits of a weight, for int4 and int2.")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            "-s",
            metavar="BYTES|NAME=N",
            help="The bytes that the file may have, such as 100MB, for int4 and int2; or an open "
            "dimension to measure the speed with, such as batch=8.",
        ),
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="How many weights share a scale, for int4 and int2.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="How weights are rounded: rtn, mse, gptq, awq or auto.")
    ] = "auto",
    processors: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="The processors of an int8 file: this and those like it; all: one bit less, exact "
            "on x86-64 without VNNI, too.",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows of a batch of data.")] = None,
    limit: Annotated[int | None, typer.Option(help="Batches of data to read at most.")] = None,
    tune: Annotated[
        str | None, typer.Option(help="Learn the rounding for this time, such as 5min.")
    ] = None,
    tune_data: Annotated[
        str | None,
        typer.Option(help="Rows or feeds to learn the rounding from; else those of --data."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="The file for the quantized model.")] = None,
    page: Annotated[Path | None, typer.Option(help="A file for the report as HTML.")] = None,
    force: Annotated[
        bool, typer.Option(help="Save the best model that was found even if it did not help.")
    ] = False,
    seed: arguments.Seed = 0,
    as_json: arguments.Json = False,
) -> None:
    """Quantize a model, measure it, and undo what is slower or loses too much.

    If nothing helps, the exit code is 1 and no model is saved; --force saves the best one found,
    with exit code 0. Ctrl-C while tuning keeps its state next to --save; the same command
    continues.

    \b
    onward quantize model.onnx --data rows.npz --save small.onnx
    onward quantize model.onnx --data rows.npz --metric accuracy --target label --drop 0.5%
    onward quantize model.onnx --to int4 --save small.onnx
    onward quantize model.onnx --data rows.npz --to int2 --tune 10min --save small.onnx
    """
    check_files(model, save, page)
    most_bytes, sizes = _split_sizes(size)
    folder = save.with_name(f"{save.name}.tuning") if save is not None and tune else None
    try:
        with WorkProgress() as work:
            report = quantization.quantize(
                model,
                data,
                to,
                drop=drop,
                metric=arguments.read_metric(metric),
                target=target,
                provider=provider,
                bits=bits,
                size=most_bytes,
                block=block,
                method=method,
                processors=processors,
                batch=batch,
                limit=limit,
                sizes=sizes,
                tune=_make_tune(tune, tune_data, folder, seed),
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
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    finish(report, save, page, force, as_json)


def _make_tune(text: str | None, data: str | None, folder: Path | None, seed: int) -> Tune | None:
    """The settings of learned rounding, with a folder to continue from."""
    if text is None:
        if data is not None:
            raise OptionError("--tune-data is read by --tune\ngive a time, such as --tune 5min")
        return None
    return replace(tune_settings.Tune.read(text), data=data, folder=folder, seed=seed)


def _split_sizes(texts: list[str] | None) -> tuple[str | None, dict[str, int]]:
    """The bytes of a file, and the sizes of dynamic dimensions."""
    amounts = [text for text in texts or () if "=" not in text]
    if len(amounts) > 1:
        raise OptionError(f"--size gives the bytes of the file twice: {', '.join(amounts)}")
    dimensions = [text for text in texts or () if "=" in text]
    return (amounts[0] if amounts else None), arguments.read_sizes(dimensions)
