"""onward new: write an untrained model of an architecture; each architecture is a command."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import typer
from rich.console import Console

from onward.cli.console import make_console, make_table, print_pairs, print_table, show_shape
from onward.cli.help_text import unwrap
from onward.errors import FileExists, OptionError
from onward.formatting import show_bytes, show_count
from onward.graph.files import load, save, weight_bytes
from onward.graph.paths import check_writable
from onward.graph.summary import file_bytes, summarize
from onward.runner.architectures.architecture_options import (
    Architecture,
    ArchitectureOption,
    description,
    options_of,
)
from onward.runner.architectures.new_model import ARCHITECTURES, count_parameters, new_model

app = typer.Typer(
    name="new",
    invoke_without_command=True,
    add_completion=False,
    subcommand_metavar="[ARCHITECTURE] [OPTIONS]...",
)
_SAVE, _SEED, _OVERWRITE = "save_as", "seed", "overwrite"


def new(context: typer.Context) -> None:
    """Write an untrained model of an architecture, such as resnet or gpt2.

    Its weights are initialised as the paper says. Without an architecture, all of them are listed
    with their options.

    \b
    onward new
    onward new resnet --help
    onward new resnet --depth 18 --classes 10 --image 3x32x32 --save resnet.onnx
    onward new gpt2 --layers 4 --width 128 --context 64
    """
    if context.invoked_subcommand is None:
        _list(make_console())


app.callback(help=unwrap(new.__doc__ or ""))(new)


def _make_command(name: str, architecture: Architecture) -> Callable[..., None]:
    """The function of `onward new NAME`, whose options are those of the architecture."""
    options = options_of(architecture)

    def command(**given: Any) -> None:
        path, seed, overwrite = (given.pop(key) for key in (_SAVE, _SEED, _OVERWRITE))
        chosen = {
            key: options[key].parse(value) if isinstance(value, str) else value
            for key, value in given.items()
            if value is not None
        }
        model = new_model(name, seed, **chosen)
        _write(model, path, overwrite)
        _show(make_console(), model, path)

    parameters = [*map(_parameter, options.values()), *_shared_parameters(name)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(option: ArchitectureOption) -> inspect.Parameter:
    """An option of an architecture for typer; texts are parsed and checked by the architecture."""
    flag, default = _flag(option), option.default
    if option.kind is bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        kind: Any = Annotated[bool, typer.Option(both, help=option.explanation)]
    else:
        default = None if default is None else option.show(default)
        kind = Annotated[
            str | None,
            typer.Option(
                flag,
                metavar=_metavar(option),
                help=option.explanation,
                autocompletion=lambda incomplete: [
                    str(each) for each in option.choices if str(each).startswith(incomplete)
                ],
            ),
        ]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )


def _flag(option: ArchitectureOption) -> str:
    return f"--{option.name.replace('_', '-')}"


def _metavar(option: ArchitectureOption) -> str:
    """What an option takes, as help shows it."""
    if option.choices:
        return "|".join(map(str, option.choices))
    if option.length is None:
        return "N,N,..."
    if option.length:
        return "CxHxW"
    return "N" if option.kind is int else "NUMBER"


def _shared_parameters(name: str) -> list[inspect.Parameter]:
    """The options that every architecture has."""
    file = typer.Option("--save", help="The new file.")
    kinds: dict[str, tuple[Any, Any]] = {
        _SEED: (
            Annotated[int, typer.Option("--seed", min=0, help="The seed of the weights.")],
            0,
        ),
        _SAVE: (Annotated[Path, file], Path(f"{name}.onnx")),
        _OVERWRITE: (
            Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")],
            False,
        ),
    }
    return [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for key, (annotation, default) in kinds.items()
    ]


for _name, _architecture in ARCHITECTURES.items():
    app.command(_name, help=unwrap(description(_architecture)))(_make_command(_name, _architecture))


def _write(model: ir.Model, path: Path, overwrite: bool) -> None:
    """Save a model; an existing file, which may be a trained model, is kept."""
    if path.is_file() and not overwrite:
        raise FileExists(f"{path} exists\ngive another name with --save, or --overwrite")
    check_writable(path)
    try:
        save(model, path)
    except MemoryError as error:
        size = show_bytes(weight_bytes(model))
        raise OptionError(
            f"the weights of {size} do not fit into memory\ngive smaller sizes"
        ) from error


def _show(console: Console, model: ir.Model, path: Path) -> None:
    """What was written, and what to do next."""
    size = file_bytes(path, summarize(load(path)))
    console.print(
        f"{path}: {count_parameters(model):,} parameters, {show_bytes(size)}", style="bold"
    )
    for title, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        print_pairs(console, [(f"  {title} {v.name}", _describe_value(v)) for v in values])
    console.print(f"next: onward inspect {shlex.quote(str(path))}", soft_wrap=True)


def _describe_value(value: ir.Value) -> str:
    dtype = "" if value.dtype is None else value.dtype.numpy().name
    sizes = [size if isinstance(size, int) else size.value for size in value.shape or ()]
    return f"{dtype} {show_shape(sizes)}"


def _list(console: Console) -> None:
    """Every architecture with the size of its default, and its options with their defaults."""
    table = make_table("architecture", ">parameters", "model", "options")
    for name, architecture in ARCHITECTURES.items():
        options = options_of(architecture).values()
        table.add_row(
            name,
            show_count(count_parameters(new_model(name))),
            description(architecture).splitlines()[0],
            " ".join(map(_show_option, options)),
        )
    print_table(console, table)
    console.print("onward new ARCHITECTURE --help explains the options", style="dim")


def _show_option(option: ArchitectureOption) -> str:
    flag = _flag(option)
    if option.kind is bool:
        return flag if option.default else f"--no-{flag.removeprefix('--')}"
    return flag if option.default is None else f"{flag} {option.show(option.default)}"
