"""The `onward` command: its verbs, one module each, and the printing of their errors.

Exit codes: 0 done; 1 the answer is no (two models differ); 2 bad input, one line on stderr;
70 a bug in Onward, which `--traceback` shows in full; 77 other processes train this run now;
130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onward.cli.help_text import unwrap
from onward.cli.option_hints import suggest_option, translate_hints
from onward.distributed.launchers.failures import FENCED
from onward.errors import OnwardError, RunFenced
from onward.lazy import defer_imports

# verb: its module and its line in the list. The function in the module has the verb's name, with _.
VERBS = {
    "demo": (
        "onward.cli.demo",
        "Train a digits classifier from scratch, export it and run it on every provider.",
    ),
    "new": (
        "onward.cli.new",
        "Write an untrained model of an architecture, such as resnet or gpt2.",
    ),
    "train": ("onward.cli.train", "Train a model on data."),
    "launch": (
        "onward.cli.launch",
        "Start the processes of a training run, on this machine or on several.",
    ),
    "deploy": (
        "onward.cli.deploy",
        "Write the job of a training run for Kubernetes, Ray or Slurm.",
    ),
    "plan": (
        "onward.cli.plan",
        "Estimate the memory, the traffic and the time of each layout of a distributed run.",
    ),
    "runs": ("onward.cli.runs", "List the runs of a folder, or compare some of them."),
    "sweep": (
        "onward.cli.sweep",
        "Search for the settings of a run: train with many of them and compare.",
    ),
    "inspect": ("onward.cli.inspect", "Show a model's inputs, outputs, operators and weights."),
    "run": ("onward.cli.run", "Run a model once and show its outputs."),
    "bench": ("onward.cli.bench", "Measure a model on several providers, side by side."),
    "tune": ("onward.cli.tune", "Measure which provider and settings run a model fastest here."),
    "compare": ("onward.cli.compare", "Compare two models: outputs, latency, size."),
    "profile": ("onward.cli.profile", "Show where the time of a run goes, operator by operator."),
    "quantize": (
        "onward.cli.quantize",
        "Quantize a model, measure it, and undo what is slower or loses too much.",
    ),
    "prune": (
        "onward.cli.prune",
        "Remove the channels, heads, units and layers that a model's outputs need least.",
    ),
    "distill": ("onward.cli.distill", "Train a small model on the answers of a large one."),
    "early-exit": (
        "onward.cli.early_exit",
        "Add exits to a classifier: samples that are easy leave early.",
    ),
    "pack": ("onward.cli.pack", "Write a model in fewer bytes, without losing a bit."),
    "unpack": ("onward.cli.unpack", "Write the ONNX model that a packed file was made from."),
    "edge": (
        "onward.cli.edge",
        "Write a model as a folder for a browser, a phone, Node or a reduced build.",
    ),
    "serve": ("onward.cli.serve", "Serve models over HTTP and gRPC."),
    "export": ("onward.cli.export", "Write a PyTorch module as ONNX."),
    "grad": ("onward.cli.grad", "Extend a model with the gradients of its outputs."),
    "ops": ("onward.cli.ops", "List which operators each provider runs."),
    "sign": ("onward.cli.sign", "Sign a model and its external data."),
    "verify": ("onward.cli.verify", "Check a model and its external data against its signature."),
    "providers": ("onward.cli.providers", "List the providers of this machine."),
}
BAD_INPUT, BUG, INTERRUPTED = 2, 70, 130
# onnx-ir imports sympy (0.4 s) for arithmetic on symbolic sizes, which few commands need
_DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")


class Verbs(TyperGroup):
    """The verbs of the table; a verb's module is imported when it is called, not to list it."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, _load_verb(name) if name in VERBS else listed, rest


def _load_verb(name: str) -> Any:
    module = importlib.import_module(VERBS[name][0])
    verb = getattr(module, name.replace("-", "_"))
    if hasattr(module, "app"):  # a verb with commands of its own
        return typer.main.get_command(module.app)
    single = typer.Typer(add_completion=False)
    single.command(name, help=unwrap(verb.__doc__ or ""))(verb)
    return typer.main.get_command(single)


app = typer.Typer(
    name="onward",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _placeholder() -> None:
    """A verb in lists; `Verbs` replaces it with the verb itself."""


for _name, (_, _line) in VERBS.items():
    app.command(_name, help=_line)(_placeholder)


def _print_version(wanted: bool) -> None:
    if wanted:
        package = sys.modules["onward"]  # may run without being installed
        typer.echo(f"onward {package.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from (after any verb).")
    ] = False,
) -> None:
    """Run and train ONNX models on stock engines."""


def main() -> None:
    """Run a verb; bad input is one line and exit code 2, never a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    show_traceback = len(arguments) < len(sys.argv) - 1
    defer_imports(*_DEFERRED)
    warnings.showwarning = _print_once(set())
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # its errors are raised and printed here
    try:
        code = app(arguments, prog_name="onward", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        code = INTERRUPTED if _is_interrupted(error) else _print_error(error)
    sys.exit(code if isinstance(code, int) else 0)


def _is_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C came while a module of C was imported, which makes it an ImportError."""
    cause = error.__cause__ or error.__context__
    return isinstance(error, ImportError) and (
        isinstance(cause, KeyboardInterrupt) or (cause is not None and _is_interrupted(cause))
    )


def _print_error(error: Exception) -> int:
    """Print an error in one line and return the exit code."""
    if hasattr(error, "format_message"):  # typer's own: an option or a verb that does not exist
        suggest_option(error)
        if message := error.format_message():  # none where the help was printed instead
            _print_line("error", message)
        return BAD_INPUT
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, OnwardError):
        _print_line("error", translate_hints(str(error)))
        is_fenced = isinstance(error, RunFenced) or isinstance(error.__cause__, RunFenced)
        return FENCED if is_fenced else BAD_INPUT
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename is not None else ""
        _print_line("error", f"{error.strerror}{where}" if error.strerror else str(error))
        return BAD_INPUT
    frame = traceback.extract_tb(error.__traceback__)[-1]
    _print_line(
        "bug",
        f"{type(error).__name__}: {error} ({frame.name}, {os.path.basename(frame.filename)}:"
        f"{frame.lineno}); this is a bug in Onward: please report it with the output of "
        "the same command with --traceback",
    )
    return BUG


def _print_once(printed: set[str]) -> Callable[..., None]:
    """A function that prints a warning in one line, unless the command has printed the same."""

    def print_warning(message: Any, *where: Any, **more: Any) -> None:
        text = translate_hints(str(message))
        if text not in printed:
            printed.add(text)
            _print_line("warning", text)

    return print_warning


def _print_line(kind: str, message: str) -> None:
    """Print one line on stderr: the problem; what to do."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    colour = typer.colors.YELLOW if kind == "warning" else typer.colors.RED
    plain = "NO_COLOR" in os.environ
    typer.echo(f"{kind if plain else typer.style(kind, fg=colour)}: {line}", err=True)
