"""R15: what is not a number never reaches the weights.

    python -m conformance.reliability.injected_nans [--count N] [--seed S]

Batches with NaN, with infinity and with numbers that overflow come among good ones, at random, in
a TrainingSession and in Module and Optimizer of onward.training.api. After each of them every
parameter, optimizer state, statistic and average is finite and the parameters are what they were;
and the run ends in the same bits as one that was never given them. Where gradients are accumulated,
one bad micro-batch costs the whole update, and nothing more.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import onward
from conformance.reliability.resume_runs import MODELS, OPTIMIZERS, OTHERS, batch
from onward.losses.classification import CrossEntropy
from onward.optimizers.adam import AdamW
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.passes.training_mode import eval_mode
from onward.programs.training_options import TrainingOptions
from onward.training.api import CheckpointState, Module
from onward.training.api import Optimizer as DeviceOptimizer
from onward.training.artifacts import generate_artifacts

POISONS = {"NaN": np.nan, "infinity": np.inf, "overflow": 3e38}
GOOD = 6  # good updates between which the bad ones come

Array = np.ndarray[Any, Any]
Feeds = dict[str, Any]


@dataclass
class Tally:
    """The effects of the bad batches."""

    injected: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.injected
        failures = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        runs = ", ".join(f"{count} of {api}" for api, count in self.runs.items())
        return (
            f"R15: {n:,} batches with NaN, infinity or overflow in {self.runs.total()} runs "
            f"({runs}); reached the weights, or changed the run: {failures}"
        )


class Run(Protocol):
    """A training run of either API."""

    def update(self, micro_batches: Sequence[Feeds]) -> None: ...

    def parameters(self) -> dict[str, Array]: ...

    def statistics(self) -> list[str]: ...

    def tensors(self) -> dict[str, Array]: ...

    def skipped(self) -> int: ...


class SessionRun:
    """A run of a TrainingSession, with clipping and an average."""

    api = "TrainingSession"

    def __init__(self, program: Any) -> None:
        self._session = onward.TrainingSession(program)

    @staticmethod
    def opener(
        name: str, optimizer: Optimizer, groups: list[Group], accumulate: int, folder: Path
    ) -> Callable[[], Run]:
        options = TrainingOptions(
            accumulate=accumulate, clip_norm=1.0, average=EMA(decay=0.9), groups=groups, seed=3
        )
        program = onward.compile_training(MODELS[name](), CrossEntropy(), optimizer, options)
        return lambda: SessionRun(program)

    def update(self, micro_batches: Sequence[Feeds]) -> None:
        for feeds in micro_batches:
            self._session.step(feeds)

    def parameters(self) -> dict[str, Array]:
        return {name: tensor.copy() for name, tensor in self._session.parameters.items()}

    def statistics(self) -> list[str]:
        return list(self._session.statistics)

    def tensors(self) -> dict[str, Array]:
        return self._session.checkpoint()[0]

    def skipped(self) -> int:
        return self._session.skipped_steps


class DeviceRun:
    """A run of artifacts, without Dropout: its random numbers cannot be repeated there."""

    api = "onward.training.api"

    def __init__(self, folder: Path) -> None:
        self._state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self._module = Module(folder / "training_model.onnx", self._state)
        self._optimizer = DeviceOptimizer(folder / "optimizer_model.onnx", self._module)
        self._skipped = 0

    @staticmethod
    def opener(
        name: str, optimizer: Optimizer, groups: list[Group], accumulate: int, folder: Path
    ) -> Callable[[], Run]:
        model = eval_mode(MODELS[name]())
        generate_artifacts(
            model,
            loss=CrossEntropy(),
            optimizer=optimizer,
            groups=groups,
            artifact_directory=folder,
        )
        return lambda: DeviceRun(folder)

    def update(self, micro_batches: Sequence[Feeds]) -> None:
        for feeds in micro_batches:
            self._module(feeds["x"], feeds["labels"])
        self._optimizer.step()
        if self.skipped() == self._skipped:  # a step that was skipped has dropped them itself
            self._module.lazy_reset_grad()
        self._skipped = self.skipped()

    def parameters(self) -> dict[str, Array]:
        return {name: each.data for name, each in self._state.parameters if each.requires_grad}

    def statistics(self) -> list[str]:
        return [name for name, each in self._state.parameters if not each.requires_grad]

    def tensors(self) -> dict[str, Array]:
        slots = self._optimizer._stored.slots
        found = {name: each.data for name, each in self._state.parameters}
        return found | {
            f"{s}/{n}": array for s, by_name in slots.items() for n, array in by_name.items()
        }

    def skipped(self) -> int:
        return self._optimizer.skipped_steps


RUNS: list[type[SessionRun] | type[DeviceRun]] = [SessionRun, DeviceRun]


def poisoned(number: int, kind: str, draw: random.Random) -> Feeds:
    """A batch in which one row is bad: one element of it, or all of it where sums overflow."""
    feeds = batch(number)
    x = feeds["x"].copy()
    row, column = draw.randrange(x.shape[0]), draw.randrange(x.shape[1])
    if kind == "overflow":
        x[row] = POISONS[kind] * np.where(np.arange(x.shape[1]) % 2, 1, -1)
    else:
        x[row, column] = POISONS[kind]
    return {**feeds, "x": x}


def inject_all(count: int, seed: int, models: list[str], optimizers: list[Optimizer]) -> Tally:
    """Inject `count` bad batches for each model and API, over its optimizers."""
    tally, draw = Tally(), random.Random(seed)
    log = logging.getLogger("onward")
    level = log.level
    log.setLevel(logging.CRITICAL)  # each skipped update is a line
    try:
        for run in RUNS:
            for name in models:
                for place, optimizer in enumerate(optimizers):
                    share = count // len(optimizers) + (place < count % len(optimizers))
                    _run(run, name, optimizer, share, draw, tally)
    finally:
        log.setLevel(level)
    return tally


def _run(
    run: type[SessionRun] | type[DeviceRun],
    name: str,
    optimizer: Optimizer,
    count: int,
    draw: random.Random,
    tally: Tally,
) -> None:
    rest = OTHERS[name] if isinstance(optimizer, Muon) else []
    groups = [Group(parameters=rest, optimizer=AdamW(lr=0.02))] if rest else []
    accumulate = draw.choice([1, 2])
    with tempfile.TemporaryDirectory() as folder:
        open_it = run.opener(name, optimizer, groups, accumulate, Path(folder))
        clean, hurt = open_it(), open_it()
    tally.runs[run.api] += 1
    where = f"{run.api}, {name}, {type(optimizer).__name__}"
    places = sorted(draw.randrange(GOOD) for _ in range(count))
    for update in range(GOOD):
        good = [batch(update * accumulate + micro) for micro in range(accumulate)]
        for _ in range(places.count(update)):
            kind = draw.choice(list(POISONS))
            bad = draw.randrange(accumulate)
            worse = poisoned(update * accumulate + bad, kind, draw)
            fault = _poison(hurt, [*good[:bad], worse, *good[bad + 1 :]])
            tally.injected += 1
            tally.faults += [f"{where}, {kind} before update {update}: {fault}"] if fault else []
        clean.update(good)
        hurt.update(good)
    if hurt.skipped() != count:
        tally.faults.append(f"{where}: {hurt.skipped()} of {count} updates were left out")
    different = _different(clean, hurt, state=accumulate == 1)
    tally.faults += [f"{where}: {different} differs from a run without poison"] if different else []


def _poison(hurt: Run, micro_batches: Sequence[Feeds]) -> str:
    """An update with one bad micro-batch; the tensors that it changed wrongly."""
    before = hurt.parameters()
    hurt.update(micro_batches)
    for name, tensor in hurt.parameters().items():
        if not np.array_equal(tensor, before[name]):
            return f"{name} has changed"
    for name, tensor in hurt.tensors().items():
        if not np.isfinite(tensor).all():
            return f"{name} is not finite"
    return ""


def _different(clean: Run, hurt: Run, state: bool) -> str:
    """The first tensor that differs; good micro-batches of a skipped update move statistics."""
    wanted, found = clean.tensors(), hurt.tensors()
    names = [name for name in wanted if state or name not in clean.statistics()]
    return next((name for name in names if not np.array_equal(wanted[name], found[name])), "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=50, help="of each model and API")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = inject_all(given.count, given.seed, list(MODELS), OPTIMIZERS)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
