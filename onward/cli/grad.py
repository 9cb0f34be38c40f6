"""onward grad: extend a model with its gradients and save it as plain ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli import arguments
from onward.cli.console import make_console, print_pairs, show_shape
from onward.errors import OptionError
from onward.gradients.model import gradient
from onward.graph.dtypes import FLOATS
from onward.graph.files import load, save
from onward.graph.paths import check_writable
from onward.passes.linear_models import write_linear_models


def grad(
    model: arguments.Model,
    wrt: Annotated[
        list[str] | None,
        typer.Option("--wrt", metavar="NAME", help="An input, initializer or intermediate value."),
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Every float initializer of the model.")
    ] = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME[=COTANGENT]",
            help="A scalar output; or any output, and a name for the input of its cotangent. "
            "If not given: the first output.",
        ),
    ] = None,
    save_as: Annotated[
        Path | None, typer.Option("--save", help="The new file; MODEL.grad.onnx if not given.")
    ] = None,
) -> None:
    """Extend a model with the gradients of its outputs, in standard operators.

    \b
    onward grad model.onnx --wrt x
    onward grad model.onnx --parameters --output loss --save training.onnx
    onward grad model.onnx --wrt x --output logits=dlogits
    """
    path = save_as or model.with_suffix(f".grad{model.suffix}")
    check_writable(path)
    loaded = write_linear_models(load(model)) if parameters else load(model)
    initializers = loaded.graph.initializers.values()
    names = [*(wrt or ()), *(str(v.name) for v in initializers if parameters and v.dtype in FLOATS)]
    if not names:
        raise OptionError(
            "no inputs selected\ngive --wrt NAME, or --parameters for every float initializer"
        )
    asked = output or [str(loaded.graph.outputs[0].name)]
    pairs = [text.partition("=") for text in asked]
    cotangents = {name: cotangent for name, _, cotangent in pairs if cotangent}
    plain = [name for name, _, cotangent in pairs if not cotangent]
    if cotangents and plain:
        raise OptionError("give every output a cotangent, or none: --output NAME=COTANGENT")
    extended = gradient(loaded, cotangents or plain, names)
    save(extended, path)
    console = make_console()
    added = list(extended.graph.outputs)[-len(dict.fromkeys(names)) :]
    rows = [(str(value.name), show_shape(_sizes(value.shape))) for value in added[:20]]
    print_pairs(console, rows)
    if len(added) > 20:
        console.print(f"... and {len(added) - 20} more")
    console.print(f"{len(extended.graph):,} nodes in {path}; any onnxruntime runs it")


def _sizes(shape: object) -> list[object] | None:
    if shape is None:
        return None
    return [size if isinstance(size, int) else size.value for size in shape]  # type: ignore[attr-defined]
