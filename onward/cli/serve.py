"""onward serve: serve models over HTTP and gRPC."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from onward.cli.arguments import MODELS, complete_paths
from onward.cli.config_flags import add_config_flags, given_settings
from onward.cli.console import make_console
from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.serving.banner import banner_sections
from onward.serving.server_info import ServerInfo
from onward.serving.settings import ModelSettings, ServingSettings
from onward.serving.settings_sources import (
    environment_layer,
    file_layer,
    flag_layer,
    merge_layers,
)
from onward.serving.shown_settings import show_settings

if TYPE_CHECKING:
    from onward.serving import serve as server
else:  # it loads the server's packages, which --help and --show-config do not need
    server = LazyModule("onward.serving.serve")


def serve(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="A model, or a folder of models: NAME/1/model.onnx.",
            autocompletion=lambda incomplete: complete_paths(incomplete, MODELS),
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings from a .toml or .yaml file.")
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print every setting and where it came from, as TOML, and stop."
        ),
    ] = False,
    show_keys: Annotated[
        bool, typer.Option("--show-keys", help="Keys are not hidden by --show-config.")
    ] = False,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            metavar="NAME.SETTING=VALUE",
            help="A setting of one model, such as digits.max_batch_size=8.",
            rich_help_panel="Models",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Serve models over HTTP and gRPC, with the Open Inference Protocol.

    Clients of Triton and KServe work as they are. Settings come from --config, from variables such
    as ONWARD_SERVE_HTTP_PORT, and from flags, which win. SIGTERM and Ctrl-C finish what was
    accepted, then stop.

    \b
    onward serve model.onnx
    onward serve models --http-port 9000 --max-batch-size 32 --batch-delay 0.002
    onward serve models --models digits.workers=2 --models faces.providers=cuda,cpu
    onward serve models --config serve.toml --show-config
    """
    flags = given_settings(given, ServingSettings, ModelSettings)
    merged = merge_layers(
        {} if config is None else file_layer(config),
        environment_layer(os.environ),
        flag_layer(flags, models),
    )
    if show_config:
        typer.echo(show_settings(merged, show_keys), nl=False)
        return
    if path is None:
        raise OptionError("there is no model to serve\ngive one: onward serve model.onnx")
    console = make_console()
    code = server.run_server(
        path, merged.server, merged.model, on_ready=lambda info: print_banner(console, info)
    )
    if code:
        raise typer.Exit(code)


add_config_flags(serve, ServingSettings, ModelSettings, leave_out=("models",))


def print_banner(console: Console, info: ServerInfo) -> None:
    """Print the banner; lines to copy are not wrapped, and begin in the first column."""
    for section in banner_sections(info):
        console.print(Text(section.title, "bold"))
        for line in section.lines:
            shown = Text(line, "cyan") if section.is_code else Text(f"  {line}")
            console.print(shown, soft_wrap=True)
        console.print()
