"""onward ops: list which operators each provider runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.console import make_console, make_table, print_json, print_table
from onward.cli.progress import WorkProgress
from onward.errors import OptionError, ProviderMissing
from onward.lazy import LazyModule
from onward.message_text import suggest_names
from onward.providers.choose import INDUCTOR, available, install_hint
from onward.providers.provider_names import short_name

if TYPE_CHECKING:
    from onward.gradients import coverage as differentiable
    from onward.gradients import table
    from onward.gradients.coverage import Differentiable
    from onward.measure import operator_support
    from onward.measure.operator_support import Operator
else:  # completion in the shell must not wait for them
    operator_support = LazyModule("onward.measure.operator_support")
    differentiable = LazyModule("onward.gradients.coverage")
    table = LazyModule("onward.gradients.table")

Selected = TypeVar("Selected", "Operator", "Differentiable")
_SIGNS = {True: "yes", False: "-", None: "?"}


def ops(
    provider: arguments.Providers = None,
    domain: Annotated[
        str | None, typer.Option("--domain", help="ai.onnx, ai.onnx.ml, com.microsoft, ...")
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op", metavar="NAME", help="Only this operator: Conv, or com.microsoft::Gelu."
        ),
    ] = None,
    gradients: Annotated[
        bool,
        typer.Option("--gradients", help="List which operators have a gradient, and its formula."),
    ] = False,
    as_json: arguments.Json = False,
) -> None:
    """List which operators each provider runs.

    Each provider is asked about one small node of each operator, at the newest opset. For nodes of
    other types or attributes the answer may differ: onward inspect --providers asks about the
    nodes of a model. The first call takes seconds; the answers are kept for later calls.

    \b
    onward ops
    onward ops --op Conv --op Attention
    onward ops --provider torch --domain com.microsoft
    onward ops --gradients
    """
    if gradients:
        _show_gradients(domain, op, as_json)
        return
    named = [name for name, _ in arguments.read_providers(provider)]
    for name in named:
        if name not in available():
            raise ProviderMissing(f"{name} is not on this machine\n{install_hint(name)}")
    # Inductor compiles what torch runs: its column would repeat torch's.
    listed = named or [name for name in available() if name != INDUCTOR]
    console = make_console(stderr=as_json)
    with WorkProgress() as work:

        def show(name: str) -> None:
            work.show_step(f"asking {name}", listed.index(name), len(listed))

        found = operator_support.operators(listed, progress=show)
    chosen = _select(found, domain, op)
    if as_json:
        print_json([asdict(operator) for operator in chosen])
        return
    _show(console, chosen, listed)
    if op:
        _show_types(console, chosen, listed)


def _show_gradients(domain: str | None, names: Sequence[str] | None, as_json: bool) -> None:
    """Print the table of gradient rules: the formula, or why there is no gradient."""
    others = operator_support.known_operators() if names or domain else ()  # those without a rule
    found = differentiable.differentiable(table.GRADIENTS, others=others)
    chosen = _select(found, domain, names)
    if as_json:
        print_json([asdict(operator) for operator in chosen])
        return
    console = make_console()
    shown = make_table("operator", "gradient", "")
    for operator in chosen:
        shown.add_row(_name(operator), operator.kind, operator.why)
    print_table(console, shown)
    counts = Counter(operator.kind for operator in chosen)
    words = [f"{counts[kind]} {kind}" for kind in ("rule", "none", "missing")]
    console.print(f"{len(chosen)} operators: {', '.join(words)}")


def _select(
    found: Sequence[Selected], domain: str | None, names: Sequence[str] | None
) -> list[Selected]:
    chosen = list(found)
    if domain is not None:
        wanted = domain or "ai.onnx"
        chosen = [operator for operator in chosen if operator.domain == wanted]
        if not chosen:
            hint = suggest_names(domain, sorted({operator.domain for operator in found}))
            raise OptionError(f"no operators of domain {domain!r}\n{hint}")
    if not names:
        return chosen
    known = {word for operator in chosen for word in _spellings(operator)}
    for name in names:
        if name.lower() not in known:
            spelled = _name if "::" in name else (lambda operator: str(operator.name))
            hint = suggest_names(name, map(spelled, chosen))
            raise OptionError(f"no operator {name!r} in the newest opsets\n{hint}")
    wishes = {name.lower() for name in names}
    return [operator for operator in chosen if wishes & _spellings(operator)]


def _spellings(operator: Operator | Differentiable) -> set[str]:
    """The names that --op accepts for an operator: with and without its domain."""
    return {operator.name.lower(), f"{operator.domain}::{operator.name}".lower()}


def _show(console: Console, chosen: Sequence[Operator], providers: Sequence[str]) -> None:
    table = make_table("operator", ">since", *map(short_name, providers))
    for operator in chosen:
        signs = [_SIGNS[operator.runs[name]] for name in providers]
        table.add_row(_name(operator), str(operator.since), *signs)
    table.add_section()
    counts = [sum(operator.runs[name] is True for operator in chosen) for name in providers]
    table.add_row(f"{len(chosen)} operators", "", *map(str, counts))
    print_table(console, table)
    if any(runs is None for operator in chosen for runs in operator.runs.values()):
        console.print(
            "?: depends on the node; onward inspect --providers asks about the nodes of a model"
        )


def _show_types(console: Console, chosen: Sequence[Operator], providers: Sequence[str]) -> None:
    for operator in chosen:
        key = ("" if operator.domain == "ai.onnx" else operator.domain, operator.name)
        for name in providers:
            if types := operator_support.types_of(key, name):
                spelled = ", ".join(
                    word.removeprefix("tensor(").removesuffix(")") for word in types
                )
                short = short_name(name)
                console.print(f"{_name(operator)} on {short} takes {spelled}", soft_wrap=True)


def _name(operator: Operator | Differentiable) -> str:
    if operator.domain == "ai.onnx":
        return operator.name
    return f"{operator.domain}::{operator.name}"
