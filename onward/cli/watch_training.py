"""The part of `onward train --watch` that follows the first training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from onward.cli.console import print_pairs
from onward.cli.training_display import TrainingDisplay
from onward.errors import OptionError
from onward.graph.paths import writing
from onward.runner.config import TrainConfig
from onward.runner.run_folder import RunFolder
from onward.runner.watch import JOURNAL
from onward.runner.watch_journal import PROMOTED, WatchDecision
from onward.runner.watch_models import check_preprocessing, watch_models


@dataclass(frozen=True)
class WatchFlags:
    """The flags of the watch; all but the folder may be left out."""

    folder: Path | None
    min_improvement: float | None = None
    replay: int | None = None
    interval: float | None = None
    once: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """The settings of `watch_models` that were given."""
        named = {
            "min_improvement": self.min_improvement,
            "replay": self.replay,
            "interval": self.interval,
            "once": self.once or None,
        }
        return {name: value for name, value in named.items() if value is not None}


def check_watch(flags: WatchFlags, config: TrainConfig) -> None:
    """Refuse what would fail after the first training, before it begins."""
    if flags.folder is None:
        for name in flags.given:
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(
                f"{flag} is a setting of --watch\nadd --watch FOLDER, or leave it out"
            )
        return
    if not flags.folder.is_dir():
        raise OptionError(f"--watch: {flags.folder} is not a folder\nmake it, or give another one")
    if config.quantization_aware:
        raise OptionError(
            "--watch: a quantized model cannot be trained again\nleave --quantization-aware out"
        )
    if config.validation is None and (config.data is None or not config.validation_split):
        raise OptionError(
            "--watch: there are no held-out rows to compare models on\n"
            "give them: --validation held_out.csv"
        )
    if config.data is None and config.model is not None:
        check_preprocessing(Path(config.model))


def served_model(folder: RunFolder) -> Path:
    """The model of a run that the watch replaces: a copy, so that the run stays as it was."""
    served = folder.path / "current.onnx"
    if not served.exists():
        with writing(served):
            shutil.copyfile(folder.model, served)
    return served


def watch_training(
    console: Console,
    flags: WatchFlags,
    model: Path,
    held_out: Any,
    settings: Mapping[str, Any],
    work: Path | None = None,
) -> None:
    """Watch the folder until Ctrl-C, or process it once; print each decision."""
    assert flags.folder is not None
    place = model.with_name(model.name + ".watch") if work is None else work
    until = "the files that are there" if flags.once else "new files; Ctrl-C ends"
    console.print(f"watching {flags.folder} for {until}", style="bold")
    decisions = watch_models(
        model,
        flags.folder,
        held_out,
        settings,
        work=place,
        make_callbacks=lambda: [TrainingDisplay(console)],
        on_decision=lambda decision: _show_decision(console, decision),
        **flags.given,
    )
    _show_end(console, decisions, model, place)


def _show_decision(console: Console, decision: WatchDecision) -> None:
    style = "bold green" if decision.decision == PROMOTED else "bold"
    console.print(str(decision), style=style, soft_wrap=True)


def _show_end(
    console: Console, decisions: Sequence[WatchDecision], model: Path, place: Path
) -> None:
    promoted = sum(each.decision == PROMOTED for each in decisions)
    files = "1 file" if len(decisions) == 1 else f"{len(decisions)} files"
    console.print(f"{files} processed, {promoted} promoted", style="bold")
    print_pairs(
        console,
        [
            (f"  {model}", "the best model so far"),
            (f"  {place / JOURNAL}", "every decision and its numbers"),
        ],
    )
