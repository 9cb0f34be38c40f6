"""Runs of onward.train that several processes make together, and the data that they train on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import onward

ROWS = 101  # no number of processes or rows of a batch divides it

Settings = Mapping[str, Any]


def write_table(folder: Path, rows: int = ROWS) -> None:
    """rows.csv, whose largest number is the class, and m.onnx, a model for it."""
    rng = np.random.default_rng(0)
    with open(folder / "rows.csv", "w") as file:
        file.write("a,b,c,d,kind\n")
        for row in rng.normal(size=(rows, 4)):
            kind = "pqrs"[int(row.argmax())]
            file.write(",".join(f"{value:.6f}" for value in row) + f",{kind}\n")
    model = onward.new_model("mlp", features=4, hidden=(16,), classes=4)
    onward.save(model, folder / "m.onnx")


def write_numbers(folder: Path) -> None:
    """rows.csv with a number to predict, and m.onnx, a model for it."""
    rng = np.random.default_rng(1)
    with open(folder / "rows.csv", "w") as file:
        file.write("a,b,c,price\n")
        for row in rng.normal(size=(ROWS, 3)):
            price = 2 * row[0] - row[1] + 0.5 * row[2] ** 2
            file.write(",".join(f"{value:.6f}" for value in (*row, price)) + "\n")
    onward.save(onward.new_model("mlp", features=3, hidden=(8,), classes=1), folder / "m.onnx")


def write_text(folder: Path) -> None:
    """rows.txt and m.onnx, a small language model."""
    words = np.random.default_rng(2).choice(["ape ", "bee ", "cat ", "dog\n"], 400)
    (folder / "rows.txt").write_text("".join(words))
    model = onward.new_model(
        "gpt2", vocabulary=16, layers=1, width=16, heads=2, context=12, dropout=0
    )
    onward.save(model, folder / "m.onnx")


def write_lists(folder: Path) -> None:
    """rows.jsonl with lists of tokens of different lengths, and m.onnx, which reads the padding."""
    rng = np.random.default_rng(3)
    with open(folder / "rows.jsonl", "w") as file:
        for _ in range(ROWS):
            tokens = rng.integers(1, 9, rng.integers(1, 20)).tolist()
            file.write(json.dumps({"tokens": tokens, "label": int(sum(tokens) % 2)}) + "\n")
    op = onward.OpBuilder()
    tokens = op.input("tokens", "int64", ("rows", "length"))
    table = op.initializer("table", rng.normal(size=(9, 4)).astype(np.float32))
    weight = op.initializer("weight", rng.normal(size=(4, 2)).astype(np.float32))
    mean = op.ReduceMean(op.Gather(table, tokens), np.array([1]), keepdims=0)
    onward.save(op.model(scores=op.MatMul(mean, weight)), folder / "m.onnx")


def train(folder: str | Path, **settings: Any) -> Any:
    """One run in a folder; `data` is rows.csv unless it is given."""
    place = Path(folder)
    usual = {"epochs": 2, "batch_size": 16, "learning_rate": 0.02, "threads": 1}
    data = place / settings.pop("data", "rows.csv")
    return onward.train(place / "m.onnx", data, runs=str(place / "runs"), **(usual | settings))


def train_on(rank: int, folder: str, settings: Settings) -> Any:
    """`train` in a process of a group: its metrics and its steps."""
    run = train(folder, **settings)
    return run.metrics, run.steps, run.stopped, str(run.folder.path)


def weights(run: str | Path) -> dict[str, Any]:
    """The exported weights of a run's folder."""
    values = onward.load(Path(run) / "model.onnx").graph.initializers.values()
    return {str(v.name): v.const_value.numpy() for v in values if v.const_value}


def metrics_lines(run: str | Path) -> list[list[str]]:
    """The lines of metrics.csv, but for what depends on the machine."""
    lines = [line.split(",") for line in (Path(run) / "metrics.csv").read_text().splitlines()]
    measured = ("samples_per_second", "data_wait", "memory")
    kept = [place for place, name in enumerate(lines[0]) if name not in measured]
    return [[line[place] for place in kept] for line in lines]
