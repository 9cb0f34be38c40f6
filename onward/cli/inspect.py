"""onward inspect: what a model takes, gives and is made of, what it costs, and who can run it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import arguments
from onward.cli.feeds import names_of_sizes
from onward.cli.inspect_screen import show_facts, show_providers, show_warnings
from onward.cli.screen import make_console, print_json
from onward.errors import InvalidModel
from onward.lazy import LazyModule
from onward.sessions.feeds import check_sizes

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph import files
    from onward.sessions import description, planning
    from onward.sessions.examine import facts as inspection
    from onward.sessions.examine import support
    from onward.sessions.memory import plans as memory
else:  # a TAB in the shell must not wait for them, nor most calls for the engines
    description = LazyModule("onward.sessions.description")
    files = LazyModule("onward.graph.files")
    inspection = LazyModule("onward.sessions.examine.facts")
    support = LazyModule("onward.sessions.examine.support")
    memory = LazyModule("onward.sessions.memory.plans")
    planning = LazyModule("onward.sessions.planning")


def inspect(
    model: arguments.Model,
    size: arguments.Sizes = None,
    provider: arguments.Providers = None,
    ask_providers: Annotated[
        bool, typer.Option("--providers", help="Ask every provider which nodes it runs (seconds).")
    ] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node.")] = False,
    plan_memory: Annotated[
        bool, typer.Option("--memory", help="Open the model in a process, and plan its memory.")
    ] = False,
    as_json: arguments.Json = False,
) -> None:
    """Show what a model takes, gives and is made of.

    Also what a run costs, with open dimensions at 1 or as --size says. No weight is read, whatever
    the size, and no engine is loaded. --providers loads them all and asks which nodes each runs;
    --provider does, and names those of a session.

    \b
    onward inspect model.onnx
    onward inspect model.onnx --size batch=8 --size sequence=128
    onward inspect model.onnx --providers
    onward inspect model.onnx --json
    """
    if model.suffix == ".ort":
        raise InvalidModel(f"{model} is in ORT format, which onnxruntime alone reads")
    sizes, asked = arguments.read_sizes(size), arguments.read_providers(provider)
    loaded = _open(model)
    check_sizes(sizes, names_of_sizes(map(description.describe, loaded.graph.inputs)))
    report, console = inspection.model_facts(loaded, model, sizes), make_console()
    if not as_json:
        show_facts(console, report, nodes)
    if plan_memory:
        plan = memory.plan_memory(model, (report["cost"] or {}).get("sizes"), asked or None)
        report["memory_plan"] = {**asdict(plan), "held": plan.held, "peak": plan.peak}
        if not as_json:
            console.print(str(plan))
    if ask_providers or asked:
        found = support.provider_facts(loaded, asked or None, report["warnings"])
        report["providers"] = found
        if found is not None and not as_json:
            show_providers(console, found)
    if as_json:
        print_json(report)
        return
    show_warnings(console, report["warnings"])


def _open(model: Path) -> ir.Model:
    """The model, which may have operators of unknown domains."""
    if model.suffix == ".pt2":  # torch's own format: torch reads it
        return planning.open_model(model, any_domain=True)
    return files.load(model, any_domain=True)
