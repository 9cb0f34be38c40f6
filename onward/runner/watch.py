"""watch: continuous training. New data arrives in a folder, and the better model is served.

    watch("model.onnx", "incoming", train=train, evaluate=evaluate)

For each new file: fine-tune the current model on it, evaluate both models on the same held-out
data, replace the served file if the candidate is better, and write the decision to a journal.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward import settings
from onward.errors import OnwardError, OptionError, WriteFailed
from onward.graph.paths import check_readable, make_folder, to_path, writing
from onward.runner.watch_journal import (
    KEPT,
    PROMOTED,
    REJECTED,
    WatchDecision,
    WatchJournal,
    file_digest,
)

log = logging.getLogger("onward")

JOURNAL, HISTORY = "watch.jsonl", "history"

Train = Callable[[Path, Sequence[Path]], Path]  # (current model, data files) -> candidate
Evaluate = Callable[[Path], float]  # the monitored number of a model on the held-out data
Sizes = Mapping[Path, tuple[int, int]]  # size and modification time of each new entry


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """When a candidate replaces the served model, and how the folder is watched."""

    monitor: str = "loss"  # the name of the number that `evaluate` returns, for the log
    higher_is_better: bool = False
    min_improvement: float = 0.0  # a candidate must be better by at least this, and by more than 0
    replay: int = 0  # earlier data files that are trained on again with each new one
    interval: float = 5.0  # seconds between two looks; a file must stay the same for one of them

    def __post_init__(self) -> None:
        settings.check_fields(
            self,
            monitor=settings.nonempty_name,
            higher_is_better=settings.true_or_false,
            min_improvement=settings.number(),
            replay=settings.integer(0),
            interval=settings.number(),
        )

    def is_better(self, candidate: float, current: float) -> bool:
        """Whether a candidate's number is better by enough; NaN never is."""
        gain = candidate - current if self.higher_is_better else current - candidate
        if math.isnan(current) and math.isfinite(candidate):
            return True
        return gain > 0 and gain >= self.min_improvement


def watch(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    train: Train,
    evaluate: Evaluate,
    options: WatchSettings | None = None,
    work: str | os.PathLike[str] | None = None,
    once: bool = False,
    on_decision: Callable[[WatchDecision], None] | None = None,
    list_files: Callable[[Path], Sizes] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], datetime.datetime] | None = None,
) -> list[WatchDecision]:
    """Train on every new file of a folder, and serve the better model; returns the decisions.

    `model` is the served file, replaced atomically by a better candidate; replaced ones are kept in
    `work/history`. `work` (by default next to the model, MODEL.watch) has the journal, too: started
    again, files that are in it are not processed again. With `once`, what is there now is processed
    (after one interval, in which it must not change); otherwise Ctrl-C ends it between two steps.
    `on_decision` is called with each decision, once it is in the journal.
    A file that cannot be read or trained on is rejected with its error, and the next one follows;
    a wrong setting or a full disk ends the watch.
    """
    served, incoming = to_path(model), to_path(folder)
    check_readable(served)
    if not incoming.is_dir():
        raise OptionError(f"{incoming} is not a folder\ngive the folder in which new data arrives")
    chosen = options or WatchSettings()
    place = served.with_name(served.name + ".watch") if work is None else to_path(work)
    make_folder(place)
    journal = WatchJournal(place / JOURNAL)
    finish_promotion(served, journal)
    look, clock = list_files or list_new_files, now or _utc_now
    done: list[WatchDecision] = []
    before = look(incoming)
    try:
        while True:
            sleep(chosen.interval)
            found = look(incoming)
            for path in stable_files(before, found):
                decision = _process(path, served, place, journal, train, evaluate, chosen, clock)
                if decision is not None:
                    log.info("%s", decision)
                    if on_decision is not None:
                        on_decision(decision)
                    done.append(decision)
            if once:
                return done
            before = found
    except KeyboardInterrupt:
        log.info("stopped; run it again to continue with the files that come")
        return done


def stable_files(before: Sizes, found: Sizes) -> list[Path]:
    """The entries that two looks saw with the same size and time, the oldest first.

    >>> stable_files({Path("a"): (5, 1), Path("b"): (1, 1)}, {Path("a"): (5, 1), Path("b"): (9, 2)})
    [...Path('a')]
    """
    same = [path for path, about in found.items() if before.get(path) == about and about[0] > 0]
    return sorted(same, key=lambda path: (found[path][1], path.name))


def list_new_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and modification time of the files and subfolders; names with a leading dot excluded."""
    found = {}
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        parts = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        try:
            about = [each.stat() for each in parts]
        except FileNotFoundError:  # it is being renamed: the next look finds it
            continue
        sizes, times = [each.st_size for each in about], [each.st_mtime_ns for each in about]
        found[path] = (sum(sizes), max(times, default=0))
    return found


def _process(
    path: Path,
    served: Path,
    place: Path,
    journal: WatchJournal,
    train: Train,
    evaluate: Evaluate,
    options: WatchSettings,
    clock: Callable[[], datetime.datetime],
) -> WatchDecision | None:
    """Decide about one file; None if its contents were processed before."""
    if not path.exists():  # removed since the last look
        return None
    digest = file_digest(path)
    if journal.has(digest):
        return None
    about: dict[str, Any] = {"file": path.name, "digest": digest, "monitor": options.monitor}
    about["time"] = clock().isoformat(timespec="seconds")
    replayed = journal.files(PROMOTED, KEPT)[-options.replay :] if options.replay else []
    old = [path.parent / name for name in replayed if (path.parent / name).exists()]
    current = evaluate(served)  # if this fails, it is not the new data's fault
    try:
        candidate = train(served, [path, *old])
        new = evaluate(candidate)
    except (OptionError, WriteFailed):  # a setting or the disk: no other file would fare better
        raise
    except (OnwardError, ValueError) as error:
        lines = str(error).splitlines()
        decision = WatchDecision(**about, decision=REJECTED, error=lines[0] if lines else "?")
        journal.add(decision)
        return decision
    about |= {"current": current, "candidate": new}
    if not options.is_better(new, current):
        decision = WatchDecision(**about, decision=KEPT)
        journal.add(decision)
        return decision
    staged = stage(candidate, served, place / HISTORY)
    decision = WatchDecision(**about, decision=PROMOTED, model=file_digest(staged))
    # before the replacement: a crash between the two is made good at the start
    journal.add(decision)
    staged.replace(served)
    return decision


def stage(candidate: Path, served: Path, history: Path) -> Path:
    """Copy a candidate next to the served model, and the served model into the history."""
    make_folder(history)
    number = 1
    while (history / f"{served.stem}.{number}{served.suffix}").exists():
        number += 1
    staged = _staged(served)
    with writing(served):
        shutil.copyfile(served, history / f"{served.stem}.{number}{served.suffix}")
        shutil.copyfile(candidate, staged)
        with open(staged, "rb+") as file:
            os.fsync(file.fileno())
    return staged


def finish_promotion(served: Path, journal: WatchJournal) -> None:
    """Replace the served model by a staged one that the journal calls promoted; else remove it."""
    staged = _staged(served)
    if not staged.exists():
        return
    last = journal.decisions[-1] if journal.decisions else None
    if last is not None and last.decision == PROMOTED and last.model == file_digest(staged):
        staged.replace(served)
    else:
        staged.unlink()


def _staged(served: Path) -> Path:
    return served.with_name(f".{served.name}.new")


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
