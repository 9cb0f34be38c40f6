"""onward export: write a PyTorch module as ONNX, for inference or for training on devices."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli import arguments
from onward.cli.console import make_console, print_pairs
from onward.cli.progress import WorkProgress
from onward.errors import OptionError, PackageMissing
from onward.formatting import show_bytes
from onward.graph.paths import check_writable
from onward.lazy import LazyModule
from onward.message_text import suggest_names

if TYPE_CHECKING:
    from onward.optimizers import catalogue
    from onward.pytorch import huggingface_folder, input_examples, module_source, onnx_export
    from onward.training import artifacts
else:  # torch is loaded when the arguments have been checked
    artifacts = LazyModule("onward.training.artifacts")
    catalogue = LazyModule("onward.optimizers.catalogue")
    huggingface_folder = LazyModule("onward.pytorch.huggingface_folder")
    input_examples = LazyModule("onward.pytorch.input_examples")
    module_source = LazyModule("onward.pytorch.module_source")
    onnx_export = LazyModule("onward.pytorch.onnx_export")
losses = LazyModule("onward.losses")

_LOSSES = {
    "cross_entropy": "CrossEntropy",
    "bce_with_logits": "BCEWithLogits",
    "mse": "MSE",
    "l1": "L1",
    "huber": "Huber",
    "smooth_l1": "SmoothL1",
    "output": "Output",
}
_WRONG = 1  # the exit code if the exported model computes something else


def export(
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="package.module:attribute or file.py:attribute, where the attribute is a module, "
            "a class or a function; or the folder of a Hugging Face model.",
        ),
    ],
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="Arguments of the class: '[3, 10]'.")
    ] = "[]",
    kwargs: Annotated[
        str,
        typer.Option("--kwargs", metavar="JSON", help="The same by name: '{\"hidden\": 8}'."),
    ] = "{}",
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE", help="A state_dict: .pt, .pth or .safetensors."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            "-i",
            metavar="NAME=TYPE[SIZES]",
            help="An input, such as x=float32[batch,3,height:64,64]: a number is a fixed size, a "
            "name an open one. Repeat it for several. Or an .npz file of examples.",
        ),
    ] = None,
    save_as: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write an inference model.")
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option("--training", metavar="FOLDER", help="Write artifacts to train on devices."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option("--loss", metavar="|".join(_LOSSES), help="The loss of --training."),
    ] = None,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="The optimizer of --training.")
    ] = "adamw",
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="N", help="Of the model. Default: 18")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Compare the model's outputs with PyTorch's."),
    ] = True,
    as_json: arguments.Json = False,
) -> None:
    """Write a PyTorch module as ONNX: for inference, or artifacts for training on devices.

    This executes the code of the module that you name: export only code that you trust. Weights are
    read only as tensors, nothing in them is executed, and nothing is downloaded.

    The exit code is 1 if the model's outputs differ from PyTorch's by more than rounding.

    \b
    onward export net.py:Net --weights net.pt --inputs 'x=float32[batch,3,32,32]' --save net.onnx
    onward export ./bert-folder --save bert.onnx
    onward export net.py:Net -i 'x=float32[batch,4]' --training artifacts --loss cross_entropy
    """
    if (save_as is None) == (training is None):
        raise OptionError("give --save FILE for inference, or --training FOLDER, not both or none")
    made_with = _read_json("--args", args, list), _read_json("--kwargs", kwargs, dict)
    chosen = _choose_training(loss, optimizer) if training is not None else None
    if save_as is not None:
        check_writable(save_as)
    started = time.perf_counter()
    with WorkProgress() as progress:
        progress.show_step("loading the module", 0, None)
        try:
            found = module_source.load_module(module, *made_with)
        except ModuleNotFoundError as error:
            raise _torch_missing(error) from error
        if weights is not None:
            module_source.load_weights(found, weights)
        given = input_examples.read_inputs(inputs or _default_inputs(module, found))
        input_examples.check_names(found, list(given.tensors))
        progress.show_step("capturing and writing the model", 1, None)
        call: dict[str, Any] = {"kwargs": given.tensors, "dynamic": given.dynamic, "opset": opset}
        if chosen is not None and training is not None:
            model = onnx_export.to_onnx(found, (), training=True, **call)
            artifacts.generate_artifacts(
                model, loss=chosen[0], optimizer=chosen[1], artifact_directory=training
            )
            facts: dict[str, Any] = {"folder": str(training), "opset": model.opset_imports[""]}
            files = sorted(training.iterdir())
        else:
            assert save_as is not None
            done = onnx_export.export(found, (), save_as, check=check, **call)
            facts = {"model": done.path, "opset": done.opset}
            facts |= {"inputs": done.inputs, "outputs": done.outputs}
            facts |= {"difference": done.difference, "agrees": done.agrees}
            files = [save_as, *save_as.parent.glob(f"{save_as.name}.data")]
    facts |= {"parameters": sum(p.numel() for p in found.parameters())}
    facts |= {"seconds": round(time.perf_counter() - started, 2)}
    facts |= {"files": {str(file): file.stat().st_size for file in files}}
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show(facts)
    if not facts.get("agrees", True):
        raise typer.Exit(_WRONG)


def _show(facts: dict[str, Any]) -> None:
    """What was written, and how much it differs."""
    console = make_console()
    for file, size in facts["files"].items():
        console.print(f"{file}: {show_bytes(size)}", style="bold", soft_wrap=True)
    rows = [(f"  input {name}", text) for name, text in facts.get("inputs", {}).items()]
    rows += [(f"  output {name}", text) for name, text in facts.get("outputs", {}).items()]
    print_pairs(console, rows)
    console.print(f"{facts['parameters']:,} parameters, opset {facts['opset']}")
    difference = facts.get("difference")
    if difference is not None:
        verdict = "as PyTorch" if facts["agrees"] else "WRONG: differs from PyTorch"
        console.print(f"{verdict}; the largest difference is {difference:.2g}")


def _read_json(option: str, text: str, kind: type) -> Any:
    example = "[3, 10]" if kind is list else '{"hidden": 8}'
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{option} is not JSON: {error}\nfor example: '{example}'") from error
    if not isinstance(found, kind):
        raise OptionError(f"{option} must be like '{example}', not {text!r}")
    return found


def _choose_training(loss: str | None, optimizer: str) -> tuple[Any, Any]:
    """The loss and the optimizer of artifacts."""
    if loss not in _LOSSES:
        hint = suggest_names(loss or "", _LOSSES)
        what = "--training needs --loss" if loss is None else f"there is no loss {loss!r}"
        raise OptionError(f"{what}\n{hint}")
    known = {name.lower(): kind for name, kind in catalogue.OPTIMIZERS.items()}
    if optimizer.lower() not in known:
        raise OptionError(
            f"there is no optimizer {optimizer!r}\n{suggest_names(optimizer.lower(), known)}"
        )
    return getattr(losses, _LOSSES[loss])(), known[optimizer.lower()]()


def _default_inputs(source: str, module: Any) -> list[str]:
    """The inputs of a Hugging Face folder are known; others must be given."""
    if not Path(source).is_dir():
        raise OptionError(
            "the shapes of the inputs are not known\n"
            "give them: --inputs 'x=float32[batch,3,224,224]', or an .npz file of examples"
        )
    return huggingface_folder.default_inputs(module)


def _torch_missing(error: ModuleNotFoundError) -> Exception:
    if error.name not in ("torch", "onnxscript"):
        return error
    return PackageMissing(
        "a PyTorch module needs torch\ninstall it with: pip install onward[torch]"
    )
