"""onward distill: train a small model on the answers of a large one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli import arguments
from onward.cli.console import make_console, print_json
from onward.cli.progress import WorkProgress
from onward.cli.sweep import read_seconds
from onward.errors import OptionError
from onward.graph.paths import check_exists, check_writable, writing
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.compress.distillation import distill as distilling
    from onward.compress.distillation import hidden_values, shrink
    from onward.compress.distillation.hidden_values import Hidden
else:  # they load onnxruntime, which completion in the shell must not wait for
    distilling = LazyModule("onward.compress.distillation.distill")
    hidden_values = LazyModule("onward.compress.distillation.hidden_values")
    shrink = LazyModule("onward.compress.distillation.shrink")


def distill(
    teacher: arguments.Model,
    student: Annotated[
        Path | None,
        typer.Argument(
            help="The model to train; without it, --layers makes one out of the teacher.",
            autocompletion=arguments.complete_models,
            metavar="[STUDENT]",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="What the teacher answers.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Where to write the student.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, help="The student is the teacher with so many layers."),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Option("--teacher", metavar="MODEL", help="Another teacher; answers are averaged."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The column of the data with labels.")
    ] = None,
    loss: Annotated[str, typer.Option("--loss", help="kl for logits, mse or cosine.")] = "kl",
    temperature: Annotated[
        float, typer.Option("--temperature", help="Softens the probabilities of kl.")
    ] = 4.0,
    standardized: Annotated[
        bool,
        typer.Option("--standardized", help="Compare logits without their scale, row by row."),
    ] = False,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", min=0, max=1, help="The teacher's share; the rest is labels."),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="STUDENT=TEACHER", help="Outputs to compare."),
    ] = None,
    hidden: Annotated[
        list[str] | None,
        typer.Option(
            "--hidden",
            metavar="STUDENT=TEACHER[:LOSS]",
            help="Inner values to compare in addition: mse, cosine or attention.",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Rows of a batch.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1)] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1)] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="5m", help="How long to train.")
    ] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", min=0)] = 1e-3,
    provider: arguments.Providers = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="FOLDER", help="Keep the teacher's answers here."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Ctrl-C saves the state here; the same call continues."),
    ] = None,
    test: Annotated[
        str | None, typer.Option("--test", metavar="FILE", help="Data to compare both on.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="Of both models, such as accuracy.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the order of the data.")] = 0,
    as_json: arguments.Json = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write the report as HTML.")
    ] = None,
) -> None:
    """Train a small model on the answers of a large one.

    The student learns from the teacher's outputs; labels are not needed, and used with --target.
    Without a student, --layers keeps some of the teacher's repeated layers. The teacher may run on
    any --provider, and answers each batch once. The written file holds only the student.

    \b
    onward distill teacher.onnx student.onnx --data images.npz --time 5m --save small.onnx
    onward distill bert.onnx --layers 3 --data texts.npz --loss mse --save small.onnx
    onward distill big.onnx small.onnx --data rows.csv --target label --hidden a=b --save s.onnx
    """
    if save is None:
        raise OptionError("--save is missing: where to write the student, such as small.onnx")
    for path in (teacher, *(more or ()), *([student] if student is not None else [])):
        check_exists(path, "model")
    if save.resolve() in {each.resolve() for each in (teacher, *(more or ()))}:
        raise OptionError("--save names the teacher, which is not changed\ngive another file")
    for path in [save, *([page] if page is not None else [])]:
        check_writable(path)
    if (student is None) == (layers is None):
        raise OptionError("give either a STUDENT or --layers, which makes one out of the teacher")
    pupil: Any = student if layers is None else shrink.shrink(teacher, layers)
    with WorkProgress() as work:
        report = distilling.distill(
            [teacher, *(more or ())],
            pupil,
            data,
            target=target,
            loss=loss,
            temperature=temperature,
            standardized=standardized,
            alpha=alpha,
            pairs=_read_pairs(pairs),
            hidden=[_read_hidden(text) for text in hidden or ()],
            batch=batch,
            epochs=epochs,
            steps=steps,
            seconds=read_seconds(time),
            learning_rate=learning_rate,
            providers=arguments.read_providers(provider) or None,
            cache=cache,
            folder=folder,
            test=test,
            metric=metric,
            seed=seed,
            progress=work.show_step,
        )
    report.save(save)
    if page is not None:
        with writing(page):
            page.write_text(report.page(), "utf-8")
    if as_json:
        print_json(report.to_json())
        return
    console = make_console()
    console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    console.print(f"{save} is written", markup=False, highlight=False, soft_wrap=True)


def _read_pairs(texts: list[str] | None) -> dict[str, str] | None:
    """Read --map a=b as {"a": "b"}."""
    if not texts:
        return None
    return dict(_split(text, "--map takes STUDENT=TEACHER") for text in texts)


def _read_hidden(text: str) -> Hidden:
    """Read --hidden a=b:cosine.

    >>> _read_hidden("relu_1=relu_4:cosine").loss
    'cosine'
    """
    mine, its = _split(text, "--hidden takes STUDENT=TEACHER or STUDENT=TEACHER:LOSS")
    name, colon, loss = its.rpartition(":")
    if colon and loss in ("mse", "cosine", "attention"):
        return hidden_values.Hidden(mine, name, loss=loss)
    return hidden_values.Hidden(mine, its)


def _split(text: str, usage: str) -> tuple[str, str]:
    mine, equals, its = text.partition("=")
    if not equals or not mine.strip() or not its.strip():
        raise OptionError(f"{usage}, not {text!r}")
    return mine.strip(), its.strip()
