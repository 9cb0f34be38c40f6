"""onward demo: `onward train` on handwritten digits, then the model on every provider."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from onward.cli.config_flags import flag_name
from onward.cli.console import (
    make_console,
    make_table,
    print_pairs,
    print_table,
    warn,
)
from onward.cli.demo_epochs import DemoEpochs
from onward.cli.progress import WorkProgress
from onward.formatting import show_bytes, show_seconds
from onward.graph.files import save
from onward.graph.paths import make_folder
from onward.measure.alternating_trials import MeasuredCandidate, measure_in_turns
from onward.measure.tuning.trials import Candidate
from onward.providers.choose import OPENVINO, REFERENCE, TORCH, available
from onward.runner.config import TrainConfig
from onward.runner.digits import TRAIN, Array, build_network, load_digits, write_digits
from onward.runner.run import INTERRUPTED
from onward.runner.train import FinishedRun
from onward.runner.train import train as train_model
from onward.sessions.inference import InferenceSession

NETWORK = "digits.onnx"  # with random weights
_SLOW_TO_OPEN = ("InductorExecutionProvider",)  # it compiles for longer than the demo takes
_EXTRAS = {TORCH: "onward[torch]", OPENVINO: "onward[openvino]"}
_IMAGES = 32  # in a run of each provider
_SECONDS = 0.25  # each provider is measured for
_TOLERANCE = 1e-4  # between the probabilities of two providers


def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 15,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("onward-demo"),
    seed: Annotated[int, typer.Option(min=0, help="The seed of the weights and batches.")] = 0,
) -> None:
    """Train a digits classifier from scratch, export it and run it on every provider.

    Ctrl-C ends the training early; the model trained so far is exported.

    \b
    onward demo
    onward demo --epochs 30 --out digits --seed 1
    """
    console = make_console()
    make_folder(out)
    images, labels = load_digits()
    network = build_network(seed, outputs=["probabilities"])
    save(network, out / NETWORK)
    console.print(
        f"Training a network with random weights on {TRAIN:,} images of handwritten digits; "
        f"{len(images) - TRAIN} images are held out to test it.\n"
    )
    before = _measure_accuracy(network, images, labels)
    settings = _settings(out, epochs, seed)
    command = _command(settings)
    with DemoEpochs(console) as shown:
        run = train_model(callbacks=[shown], command=command, **settings)
    _print_accuracies(console, run, before, _measure_accuracy(run.model, images, labels))
    compared = run.stopped != INTERRUPTED and _compare(console, run.model, images[-_IMAGES:])
    _print_next_steps(console, run, command)
    if not compared:
        raise typer.Exit(130)


def _settings(out: Path, epochs: int, seed: int) -> dict[str, Any]:
    """The settings of `onward train`; the data is written first."""
    digits, held_out = write_digits(out)
    return {
        "model": str(out / NETWORK),
        "data": str(digits),
        "validation": str(held_out),
        "epochs": epochs,
        "learning_rate": 0.003,
        "schedule": "one_cycle",
        "crop": 1,
        "seed": seed,
        "runs": str(out / "runs"),
    }


def _command(settings: Mapping[str, Any]) -> str:
    """The command that trains with these settings."""
    words = ["onward", "train", str(settings["model"])]
    for name, value in settings.items():
        if name != "model" and value != TrainConfig.model_fields[name].default:
            words += [flag_name(name), str(value)]
    return shlex.join(words)


def _measure_accuracy(model: Any, images: Array, labels: Array) -> float:
    """The share of the held-out images that a model classifies correctly."""
    session = InferenceSession(model)
    [probabilities] = session.run(["probabilities"], {"image": images[TRAIN:]})
    return float(np.mean(np.asarray(probabilities).argmax(1) == labels[TRAIN:]))


def _print_accuracies(console: Console, run: FinishedRun, before: float, after: float) -> None:
    if run.stopped == INTERRUPTED:
        warn(console, f"interrupted at step {run.steps}; the model trained so far is exported")
    console.print(f"\n{run.steps:,} steps in {run.seconds:.1f} s. Accuracy on the held-out images:")
    console.print(f"  before training       {before:>6.1%}")
    console.print(f"  the exported model    {after:>6.1%}\n", style="bold green")


# -- the trained model on every provider -----------------------------------------------------------


def _compare(console: Console, model: Path, images: Array) -> bool:
    """Run it on every provider, each in its own process; False when Ctrl-C ended it."""
    names = [name for name in available() if name not in _SLOW_TO_OPEN]
    measured = [MeasuredCandidate(model, Candidate(name), {"image": images}) for name in names]
    with WorkProgress() as progress:
        interrupted = measure_in_turns(measured, _SECONDS, progress=progress.show_step)
    good = [each for each in measured if each.timing is not None]
    if interrupted:
        warn(console, "interrupted before the providers were compared")
        return False
    if not good:
        warn(console, measured[0].error)
        return True
    expected = next((m for m in good if m.candidate.provider == REFERENCE), good[0]).outputs[0]
    table = make_table(
        "provider", ">max difference", ">first run", f">{len(images)} images", ">memory"
    )
    for each in measured:
        table.add_row(each.candidate.provider, *_cells(each, expected))
    print_table(console, table, "The exported model on every provider of this machine")
    difference = max(_difference(each, expected) for each in good)
    if difference > _TOLERANCE:
        warn(console, f"the providers do not agree: their probabilities differ by {difference:.0e}")
    else:
        console.print(f"{len(good)} providers agree within {difference:.0e}.")
    missing = [extra for name, extra in _EXTRAS.items() if name not in names]
    if missing:
        console.print(f"More providers: pip install {' '.join(missing)} (docs/install.md)")
    console.print()
    return True


def _cells(measured: MeasuredCandidate, expected: Array) -> list[str]:
    timing = measured.timing
    if timing is None:
        return [measured.error]
    return [
        f"{_difference(measured, expected):.0e}",
        show_seconds(measured.first),
        show_seconds(timing.median),
        show_bytes(timing.memory),
    ]


def _difference(measured: MeasuredCandidate, expected: Array) -> float:
    return float(np.abs(measured.outputs[0] - expected).max())


def _print_next_steps(console: Console, run: FinishedRun, command: str) -> None:
    console.print("Files", style="bold")
    files = {
        run.model: "the trained model: any ONNX runtime runs it",
        run.folder.report: "the run on one page, for a browser",
        run.folder.checkpoints: "the state of the training: --resume continues from it",
    }
    print_pairs(console, [(f"  {path}", what) for path, what in files.items()])
    console.print("\nNext steps", style="bold")
    commands = {
        f"onward inspect {run.model}": "show what is in the model",
        f"onward bench {run.model} --size batch=1": "measure each provider on one image",
        f"onward profile {run.model}": "show where its time goes",
    }
    print_pairs(console, [(f"  {each}", what) for each, what in commands.items()])
    console.print("\nThe training above, as a command (docs/train.md); try it on your own data:")
    console.print(f"  {command}", style="bold", soft_wrap=True)
