"""onward: the command line. One file a verb; here they are put together."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from rich.console import Console

from onward.cli import demo, inspect, providers
from onward.errors import OnwardError

app = typer.Typer(
    name="onward",
    help="Run and train ONNX models on stock engines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(providers.providers)
app.command()(inspect.inspect)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onward {installed_version('onward')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run and train ONNX models on stock engines."""


def main() -> None:
    """Run a verb; bad input is one clear line and exit code 2, never a traceback."""
    try:
        app()
    except (OnwardError, FileNotFoundError, PermissionError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
