"""R15: what is not a number never reaches the weights.

    python -m conformance.reliability.injected_nans [--count N] [--seed S]

Batches with NaN, with infinity and with numbers that overflow come among good ones, at random.
After each of them every parameter, optimizer state, statistic and average is finite and the
parameters are what they were; and the run ends in the same bits as one that was never given them.
Where gradients are accumulated, one bad micro-batch costs the whole update, and nothing more.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import onward
from conformance.reliability.resume_runs import MODELS, OPTIMIZERS, OTHERS, batch
from onward.losses.classification import CrossEntropy
from onward.optimizers.adam import AdamW
from onward.optimizers.average import EMA
from onward.optimizers.groups import Group
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.sessions.training.options import TrainingOptions

POISONS = {"NaN": np.nan, "infinity": np.inf, "overflow": 3e38}
GOOD = 6  # good updates between which the bad ones come


@dataclass
class Tally:
    """What the poison did."""

    injected: int = 0
    runs: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.injected
        failures = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        return (
            f"R15: {n:,} batches with NaN, infinity or overflow in {self.runs} runs; "
            f"reached the weights, or changed the run: {failures}"
        )


def poisoned(number: int, kind: str, draw: random.Random) -> dict[str, Any]:
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
    """So many bad batches for each model, over its optimizers."""
    tally, draw = Tally(), random.Random(seed)
    log = logging.getLogger("onward")
    level = log.level
    log.setLevel(logging.CRITICAL)  # each skipped update is a line
    try:
        for name in models:
            for place, optimizer in enumerate(optimizers):
                share = count // len(optimizers) + (place < count % len(optimizers))
                _run(name, optimizer, share, draw, tally)
    finally:
        log.setLevel(level)
    return tally


def _run(name: str, optimizer: Optimizer, count: int, draw: random.Random, tally: Tally) -> None:
    rest = OTHERS[name] if isinstance(optimizer, Muon) else []
    groups = [Group(parameters=rest, optimizer=AdamW(lr=0.02))] if rest else []
    accumulate = draw.choice([1, 2])
    options = TrainingOptions(
        accumulate=accumulate, clip_norm=1.0, average=EMA(decay=0.9), groups=groups, seed=3
    )
    program = onward.compile_training(MODELS[name](), CrossEntropy(), optimizer, options)
    clean, hurt = onward.TrainingSession(program), onward.TrainingSession(program)
    tally.runs += 1
    where = f"{name}, {type(optimizer).__name__}"
    places = sorted(draw.randrange(GOOD) for _ in range(count))
    for update in range(GOOD):
        for _ in range(places.count(update)):
            kind = draw.choice(list(POISONS))
            fault = _poison(hurt, update, kind, accumulate, draw)
            tally.injected += 1
            tally.faults += [f"{where}, {kind} before update {update}: {fault}"] if fault else []
        for micro in range(accumulate):
            clean.step(batch(update * accumulate + micro))
            hurt.step(batch(update * accumulate + micro))
    if hurt.skipped_steps != count:
        tally.faults.append(f"{where}: {hurt.skipped_steps} of {count} updates were left out")
    different = _different(clean, hurt, state=name != "batch norm" or accumulate == 1)
    tally.faults += [f"{where}: {different} differs from a run without poison"] if different else []


def _poison(hurt: Any, update: int, kind: str, accumulate: int, draw: random.Random) -> str:
    """An update with one bad micro-batch; what it changed that it should not have."""
    before = {name: tensor.copy() for name, tensor in hurt.parameters.items()}
    bad = draw.randrange(accumulate)
    for micro in range(accumulate):
        number = update * accumulate + micro
        hurt.step(poisoned(number, kind, draw) if micro == bad else batch(number))
    for name, tensor in hurt.parameters.items():
        if not np.array_equal(tensor, before[name]):
            return f"{name} has changed"
    for name, tensor in hurt.checkpoint()[0].items():
        if not np.isfinite(tensor).all():
            return f"{name} is not finite"
    return ""


def _different(clean: Any, hurt: Any, state: bool) -> str:
    """The first tensor that differs; good micro-batches of a skipped update move statistics."""
    wanted, found = clean.checkpoint()[0], hurt.checkpoint()[0]
    names = [name for name in wanted if state or name not in clean.statistics]
    return next((name for name in names if not np.array_equal(wanted[name], found[name])), "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=50, help="of each model")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = inject_all(given.count, given.seed, list(MODELS), OPTIMIZERS)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
