"""R7: a run that is stopped and resumed is the same run, bit for bit.

    python -m conformance.reliability.resume_runs [--stops N] [--seed S]

Models with dropout, batch normalisation and attention are trained with every optimizer; gradients
are accumulated, clipped and scaled, the learning rate is scheduled, weights are averaged, and the
data is shuffled again in each epoch. Each run is stopped at random micro-batches, within epochs and
between updates, resumed from its checkpoint by a new session, and must end in the same bits:
losses, parameters, optimizer state, statistics, averages. One stop of each pair is resumed in a new
process, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import onward
from onward.losses.classification import CrossEntropy
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.lamb import LAMB
from onward.optimizers.lion import Lion
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.rmsprop import RMSprop
from onward.optimizers.schedules import Cosine, WarmUp
from onward.optimizers.sgd import SGD
from onward.programs.training_options import TrainingOptions

Array = np.ndarray[Any, Any]
LENGTH, EPOCH, BATCH, CLASSES = 26, 8, 6, 3  # micro-batches of a run and of an epoch; rows; labels


def _weights(op: Any, draw: Any, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return {
        name: op.initializer(name, draw.normal(0, 0.3, shape).astype(np.float32))
        for name, shape in shapes.items()
    }


def dropout_mlp() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, np.random.default_rng(0), w1=(12, 16), b1=(16,), w2=(16, CLASSES))
    h = op.Relu(op.Add(op.MatMul(op.input("x", "float32", ("n", 12)), w["w1"]), w["b1"]))
    return op.model(logits=op.MatMul(op.Dropout(h, 0.3), w["w2"]))


def normalised_cnn() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, np.random.default_rng(1), kernel=(4, 1, 3, 3), shift=(4,), head=(4, CLASSES))
    x = op.Reshape(op.input("x", "float32", ("n", 12)), np.array([0, 1, 3, 4]))
    scale = op.initializer("scale", np.ones(4, np.float32))
    mean = op.initializer("mean", np.zeros(4, np.float32))
    variance = op.initializer("variance", np.ones(4, np.float32))
    h = op.Conv(x, w["kernel"], pads=[1, 1, 1, 1])
    h = op.Relu(op.BatchNormalization(h, scale, w["shift"], mean, variance))
    return op.model(logits=op.MatMul(op.ReduceMean(h, np.array([2, 3]), keepdims=0), w["head"]))


def attention() -> ir.Model:
    op = onward.OpBuilder()
    w = _weights(op, np.random.default_rng(2), q=(4, 4), k=(4, 4), v=(4, 4), head=(12, CLASSES))
    x = op.Reshape(op.input("x", "float32", ("n", 12)), np.array([0, 3, 4]))
    scores = op.MatMul(op.MatMul(x, w["q"]), op.Transpose(op.MatMul(x, w["k"]), perm=[0, 2, 1]))
    h = op.MatMul(op.Dropout(op.Softmax(scores, axis=-1), 0.2), op.MatMul(x, w["v"]))
    return op.model(logits=op.MatMul(op.Reshape(h, np.array([0, 12])), w["head"]))


MODELS: dict[str, Callable[[], ir.Model]] = {
    "dropout": dropout_mlp, "batch norm": normalised_cnn, "attention": attention,
}  # fmt: skip
OTHERS = {"dropout": ["b1"], "batch norm": ["kernel", "shift", "scale"], "attention": []}
OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.1, momentum=0.9, nesterov=True), Adam(lr=0.02), AdamW(lr=0.02), LAMB(lr=0.02),
    RMSprop(lr=0.01), Adagrad(lr=0.05), Adafactor(lr=0.02), Lion(lr=0.002), Muon(lr=0.02),
]  # fmt: skip


def options(model: str, optimizer: Optimizer) -> TrainingOptions:
    """Options that use everything that a checkpoint has to keep."""
    rest = OTHERS[model] if isinstance(optimizer, Muon) else []  # it updates only matrices
    return TrainingOptions(
        accumulate=3, clip_norm=0.5, schedule=WarmUp(steps=2, schedule=Cosine(steps=6)),
        loss_scale=DynamicLossScale(initial=8.0, interval=2), average=EMA(decay=0.9), seed=5,
        groups=[Group(parameters=rest, optimizer=AdamW(lr=0.02))] if rest else [],
    )  # fmt: skip


def batch(number: int) -> dict[str, Array]:
    """A micro-batch of a run: an epoch's rows in the order of that epoch."""
    rows = np.random.default_rng(9).normal(size=(EPOCH * BATCH, 12)).astype(np.float32)
    order = np.random.default_rng((9, number // EPOCH)).permutation(len(rows))
    place = number % EPOCH * BATCH
    x = rows[order[place : place + BATCH]]
    return {"x": x, "labels": x[:, :CLASSES].argmax(1)}


def train_to_end(session: Any, until: int = LENGTH) -> Iterator[str]:
    """Train from the session's step to the end; the bits of each loss."""
    for number in range(session.properties.get("batch", 0), until):
        loss = session.step(batch(number))["loss"]
        session.properties["batch"] = number + 1
        yield loss.tobytes().hex()


def digest(session: Any) -> str:
    """One hash of all tensors of a session."""
    tensors, properties = session.checkpoint()
    found = hashlib.sha256(json.dumps(properties["training"], sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].tobytes())
    return found.hexdigest()


@dataclass
class Tally:
    """The outcomes of the resumed runs."""

    resumed: int = 0
    processes: int = 0  # of them, in a new one
    between: int = 0  # of them, stopped with gradients that waited for an update
    pairs: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.resumed
        failures = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        return (
            f"R7: {n:,} runs resumed ({self.pairs} pairs of model and optimizer, {self.between} "
            f"stops between updates, {self.processes} in a new process); not the same bits: "
            f"{failures}"
        )


def resume_all(
    stops: int, seed: int, models: list[str], optimizers: list[Optimizer], processes: bool = True
) -> Tally:
    """Stop each pair's run at random micro-batches, and resume it."""
    tally, draw = Tally(), random.Random(seed)
    for name in models:
        for optimizer in optimizers:
            with tempfile.TemporaryDirectory() as folder:
                _resume_pair(name, optimizer, Path(folder), draw, stops, processes, tally)
    return tally


def _resume_pair(
    name: str, optimizer: Optimizer, folder: Path, draw: random.Random, stops: int,
    processes: bool, tally: Tally,
) -> None:  # fmt: skip
    tally.pairs += 1
    program = onward.compile_training(
        MODELS[name](), CrossEntropy(), optimizer, options(name, optimizer)
    )
    chosen = sorted(draw.sample(range(1, LENGTH), min(stops, LENGTH - 1)))
    whole, losses = onward.TrainingSession(program), list[str]()
    for stop in [*chosen, LENGTH]:
        losses += train_to_end(whole, stop)
        whole.save(folder / f"{stop}")
    expected = digest(whole)
    for stop in chosen:
        session = onward.TrainingSession(program)
        session.load(folder / f"{stop}")
        rest = list(train_to_end(session))
        tally.resumed += 1
        tally.between += stop % 3 > 0
        if rest != losses[stop:] or digest(session) != expected:
            tally.faults.append(f"{name}, {type(optimizer).__name__}, stopped at {stop}")
    if processes:
        program.save(folder / "program")
        command = [sys.executable, "-m", "conformance.reliability.resume_runs", "--child"]
        stop = draw.choice(chosen)
        command += [str(folder / "program"), str(folder / f"{stop}")]
        done = subprocess.run(command, capture_output=True, text=True)
        tally.resumed += 1
        tally.processes += 1
        if done.stdout.strip() != expected:
            where = f"{name}, {type(optimizer).__name__}, stopped at {stop}, in a new process"
            tally.faults.append(f"{where}: {''.join(done.stderr.strip().splitlines()[-1:])}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        session = onward.TrainingSession(given.child[0])
        session.load(given.child[1])
        list(train_to_end(session))
        print(digest(session))
        return 0
    tally = resume_all(given.stops, given.seed, list(MODELS), OPTIMIZERS)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
