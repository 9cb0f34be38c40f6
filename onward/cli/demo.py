"""onward demo: train a digits classifier, export it, run it on every provider of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from onward.cli.alternating_trials import Runner, race
from onward.cli.console import make_console, make_table, print_pairs, print_table, warn
from onward.cli.digits_training import Lesson, learn, share_right
from onward.cli.learning_curve import draw_curve
from onward.formatting import show_bytes, show_seconds
from onward.graph.paths import make_folder
from onward.measure.tuning.trials import Candidate
from onward.providers.choose import REFERENCE, available
from onward.runner.digits import TRAIN, Array, build_network, load_digits
from onward.sessions.inference import InferenceSession

MODEL, CHECKPOINT, CURVE = "digits.onnx", "checkpoint.safetensors", "curve.png"
_SLOW_TO_OPEN = ("InductorExecutionProvider",)  # it compiles for longer than the demo takes
IMAGES = 32  # that each provider reads at once
_SECONDS = 0.25  # each provider is measured for
_AGREE = 1e-4  # probabilities that are this far apart, and no farther, are the same


def demo(
    epochs: Annotated[int, typer.Option(min=1, help="How often it sees every image.")] = 15,
    out: Annotated[Path, typer.Option(help="The folder for what it makes.")] = Path("onward-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another network.")] = 0,
) -> None:
    """Train a digits classifier from scratch, export it and run it on every provider.

    Ctrl-C ends the training; what was learned until then is exported.

    \b
    onward demo
    onward demo --epochs 30 --out digits --seed 1
    """
    console = make_console()
    make_folder(out)
    images, labels = load_digits()
    network = build_network(seed)
    console.print(
        f"A network of random weights learns handwritten digits from {TRAIN:,} images; "
        f"{len(images) - TRAIN} others judge it.\n"
    )
    before = _share_right(network, images, labels)
    lesson = learn(network, images, labels, epochs, seed, console)
    _keep(lesson, out)
    after = _share_right(out / MODEL, images, labels)
    _tell(console, lesson, before, after)
    ended = lesson.ended or not _compare(console, out / MODEL, images[-IMAGES:])
    _what_next(console, out)
    if ended:
        raise typer.Exit(130)


def _share_right(model: Any, images: Array, labels: Array) -> float:
    """How many of the images that were held out a model reads rightly."""
    session = InferenceSession(model)
    [probabilities] = session.run(["probabilities"], {"image": images[TRAIN:]})
    return share_right(np.asarray(probabilities), labels[TRAIN:])


def _keep(lesson: Lesson, out: Path) -> None:
    """The trained model, where its training stands, and how it went, as files."""
    lesson.session.export(out / MODEL, outputs=["probabilities"])
    lesson.session.save(out / CHECKPOINT)
    draw_curve(lesson.curve, out / CURVE)


def _tell(console: Console, lesson: Lesson, before: float, after: float) -> None:
    steps, seconds = lesson.session.steps, lesson.seconds
    if lesson.ended:
        warn(console, f"ended at step {steps}; what was learned until then is exported")
    console.print(
        f"\n{steps:,} steps in {seconds:.1f} s. Digits read rightly, by InferenceSession:"
    )
    console.print(f"  before training   {before:>6.1%}")
    console.print(f"  after, exported   {after:>6.1%}\n", style="bold green")


# -- the trained model on every provider -----------------------------------------------------------


def _compare(console: Console, model: Path, images: Array) -> bool:
    """Run it on every provider, each in its own process; False when Ctrl-C ended it."""
    names = [name for name in available() if name not in _SLOW_TO_OPEN]
    runners = [Runner(model, Candidate(name), {"image": images}) for name in names]
    ended = race(runners, _SECONDS)
    good = [runner for runner in runners if runner.timing is not None]
    if ended or not good:
        warn(console, "ended before the providers were compared" if ended else runners[0].error)
        return not ended
    expected = next((r for r in good if r.candidate.provider == REFERENCE), good[0]).outputs[0]
    table = make_table("provider", ">apart by", ">ready in", f">{len(images)} images", ">memory")
    for runner in runners:
        table.add_row(runner.candidate.provider, *_cells(runner, expected))
    print_table(console, table, "The exported model on every provider of this machine")
    apart = max(_apart(runner, expected) for runner in good)
    if apart > _AGREE:
        warn(console, f"the providers do not agree: their probabilities are {apart:.0e} apart")
    else:
        console.print(f"{len(good)} providers agree, within {apart:.0e}.\n")
    return True


def _cells(runner: Runner, expected: Array) -> list[str]:
    timing = runner.timing
    if timing is None:
        return [runner.error]
    return [
        f"{_apart(runner, expected):.0e}",
        show_seconds(runner.first),
        show_seconds(timing.median),
        show_bytes(timing.memory),
    ]


def _apart(runner: Runner, expected: Array) -> float:
    return float(np.abs(runner.outputs[0] - expected).max())


def _what_next(console: Console, out: Path) -> None:
    console.print("What is there now", style="bold")
    files = {
        MODEL: "the trained model: any ONNX runtime runs it",
        CHECKPOINT: "where training stands: TrainingSession.load goes on from it",
        CURVE: "how the loss fell and the accuracy rose",
    }
    print_pairs(console, [(f"  {out / name}", what) for name, what in files.items()])
    console.print("\nWhat to type next", style="bold")
    commands = {
        f"onward inspect {out / MODEL}": "look inside",
        f"onward bench {out / MODEL} --size batch=1": "which provider is fastest for one image",
        f"onward profile {out / MODEL}": "where its time goes",
    }
    print_pairs(console, [(f"  {command}", what) for command, what in commands.items()])
    console.print(
        "\nTo train a model of yours: onward.TrainingSession(model, loss, optimizer); "
        "docs/training.md begins with ten lines."
    )
