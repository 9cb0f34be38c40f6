"""onward demo: train a digits classifier, export it, run it on every provider of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
import typer
from rich.console import Console

from onward.cli.console import (
    make_console,
    make_progress,
    make_table,
    print_pairs,
    print_table,
    warn,
)
from onward.cli.progress import WorkProgress
from onward.formatting import show_bytes, show_seconds
from onward.graph.paths import make_folder
from onward.measure.alternating_trials import MeasuredCandidate, measure_in_turns
from onward.measure.tuning.trials import Candidate
from onward.providers.choose import OPENVINO, REFERENCE, TORCH, available
from onward.runner.digits import TRAIN, Array, build_network, load_digits
from onward.runner.digits_training import (
    STEPS_PER_EPOCH,
    DigitsTraining,
    EpochSummary,
    accuracy_of,
    train_digits,
)
from onward.runner.learning_curve import write_learning_curve
from onward.sessions.inference import InferenceSession

MODEL, CHECKPOINT, CURVE = "digits.onnx", "checkpoint.safetensors", "curve.svg"
_SLOW_TO_OPEN = ("InductorExecutionProvider",)  # it compiles for longer than the demo takes
_EXTRAS = {TORCH: "onward[torch]", OPENVINO: "onward[openvino]"}
_IMAGES = 32  # in a run of each provider
_SECONDS = 0.25  # each provider is measured for
_TOLERANCE = 1e-4  # between the probabilities of two providers
_BAR = 24  # characters that stand for the first loss


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
    network = build_network(seed)
    console.print(
        f"Training a network with random weights on {TRAIN:,} images of handwritten digits; "
        f"{len(images) - TRAIN} images are held out to test it.\n"
    )
    before = _measure_accuracy(network, images, labels)
    training = _train(console, network, images, labels, epochs, seed)
    training.session.export(out / MODEL, outputs=["probabilities"])
    training.session.save(out / CHECKPOINT)
    write_learning_curve(training.curve, out / CURVE)
    after = _measure_accuracy(out / MODEL, images, labels)
    _print_accuracies(console, training, before, after)
    compared = not training.interrupted and _compare(console, out / MODEL, images[-_IMAGES:])
    _print_next_steps(console, out)
    if not compared:
        raise typer.Exit(130)


def _measure_accuracy(model: Any, images: Array, labels: Array) -> float:
    """The share of the held-out images that a model classifies correctly."""
    session = InferenceSession(model)
    [probabilities] = session.run(["probabilities"], {"image": images[TRAIN:]})
    return accuracy_of(np.asarray(probabilities), labels[TRAIN:])


def _train(
    console: Console, network: ir.Model, images: Array, labels: Array, epochs: int, seed: int
) -> DigitsTraining:
    """Train with a progress bar; each epoch is a line."""
    console.print(f"{'epoch':>9}   {'loss':{_BAR + 6}}   held out   steps/s", style="bold")
    mark = "#" if console.options.ascii_only else "█"
    with make_progress(console) as progress:
        task = progress.add_task("training", total=epochs * STEPS_PER_EPOCH)
        return train_digits(
            network,
            images,
            labels,
            epochs,
            seed,
            on_step=lambda loss: progress.update(task, advance=1, description=f"loss {loss:.3f}"),
            on_epoch=lambda summary: console.print(_epoch_line(summary, epochs, mark)),
        )


def _epoch_line(summary: EpochSummary, epochs: int, mark: str) -> str:
    """One epoch: its mean loss, as a number and as a bar, its accuracy and its speed."""
    bar = mark * round(min(summary.loss / max(summary.first_loss, 1e-9), 1.0) * _BAR)
    count = f"{summary.epoch}/{epochs}"
    return (
        f"{count:>9}   {summary.loss:.3f} {bar:{_BAR}}   {summary.accuracy:>8.1%}   "
        f"{summary.steps_per_second:>7,.0f}"
    )


def _print_accuracies(
    console: Console, training: DigitsTraining, before: float, after: float
) -> None:
    steps, seconds = training.session.steps, training.seconds
    if training.interrupted:
        warn(console, f"interrupted at step {steps}; the model trained so far is exported")
    console.print(f"\n{steps:,} steps in {seconds:.1f} s. Accuracy on the held-out images:")
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


def _print_next_steps(console: Console, out: Path) -> None:
    console.print("Files", style="bold")
    files = {
        MODEL: "the trained model: any ONNX runtime runs it",
        CHECKPOINT: "the training state: TrainingSession.load continues from it",
        CURVE: "loss and accuracy during the training, as a picture",
    }
    print_pairs(console, [(f"  {out / name}", what) for name, what in files.items()])
    console.print("\nNext steps", style="bold")
    commands = {
        f"onward inspect {out / MODEL}": "show what is in the model",
        f"onward bench {out / MODEL} --size batch=1": "measure each provider on one image",
        f"onward profile {out / MODEL}": "show where its time goes",
    }
    print_pairs(console, [(f"  {command}", what) for command, what in commands.items()])
    console.print(
        "\nTo train your own model: onward.TrainingSession(model, loss, optimizer); "
        "docs/training.md starts with an example of ten lines."
    )
