"""onward inspect: show a model's inputs, outputs, operators, weights, costs and providers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import arguments
from onward.cli.console import make_console, print_json
from onward.cli.inspect_screen import show_facts, show_providers, show_warnings
from onward.errors import InvalidModel
from onward.graph.random_feeds import check_sizes
from onward.lazy import LazyModule
from onward.sessions.feed_files import names_of_sizes

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph import files
    from onward.measure import inspection as inspection
    from onward.measure import node_support
    from onward.measure.memory import memory_plan as memory
    from onward.providers import model_sources
    from onward.sessions import model_description
else:  # completion in the shell must not wait for them, nor most calls for the engines
    model_description = LazyModule("onward.sessions.model_description")
    files = LazyModule("onward.graph.files")
    inspection = LazyModule("onward.measure.inspection")
    node_support = LazyModule("onward.measure.node_support")
    memory = LazyModule("onward.measure.memory.memory_plan")
    model_sources = LazyModule("onward.providers.model_sources")


def inspect(
    model: arguments.Model,
    size: arguments.Sizes = None,
    provider: arguments.Providers = None,
    ask_providers: Annotated[
        bool,
        typer.Option("--providers", help="Ask every provider which nodes it runs (takes seconds)."),
    ] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node.")] = False,
    plan_memory: Annotated[
        bool,
        typer.Option("--memory", help="Open the model in its own process and plan its memory."),
    ] = False,
    as_json: arguments.Json = False,
) -> None:
    """Show a model's inputs, outputs, operators and weights.

    Also what a run costs, with dynamic dimensions of 1 or the --size given. No weight is read, no
    engine loaded. --providers loads all engines and asks which nodes each runs; --provider does
    the same for a session with those providers.

    \b
    onward inspect model.onnx
    onward inspect model.onnx --size batch=8 --size sequence=128
    onward inspect model.onnx --providers
    onward inspect model.onnx --json
    """
    if model.suffix == ".ort":
        raise InvalidModel(
            f"{model} is in ORT format, which only onnxruntime reads\n"
            "inspect the .onnx file that it was made from"
        )
    sizes, asked = arguments.read_sizes(size), arguments.read_providers(provider)
    loaded = _open(model)
    check_sizes(sizes, names_of_sizes(map(model_description.describe, loaded.graph.inputs)))
    report, console = inspection.model_facts(loaded, model, sizes), make_console()
    if not as_json:
        show_facts(console, report, nodes)
    if plan_memory:
        plan = memory.plan_memory(model, (report["cost"] or {}).get("sizes"), asked or None)
        report["memory_plan"] = {**asdict(plan), "held": plan.held, "peak": plan.peak}
        if not as_json:
            console.print(str(plan))
    if ask_providers or asked:
        found = node_support.provider_facts(loaded, asked or None, report["warnings"])
        report["providers"] = found
        if found is not None and not as_json:
            show_providers(console, found)
    if as_json:
        print_json(report)
        return
    show_warnings(console, report["warnings"])


def _open(model: Path) -> ir.Model:
    """Load a model, which may have operators of unknown domains."""
    if model.suffix == ".pt2":  # torch's own format: torch reads it
        return model_sources.open_model(model, any_domain=True)
    return files.load(model, any_domain=True)
