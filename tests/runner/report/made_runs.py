"""Run folders with made-up numbers, for tests of reports and of lists: nothing is trained."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from onward.runner.config import make_config
from onward.runner.digits import load_digits
from onward.runner.events import Evaluation, Mistake
from onward.runner.plan.training_plan import ChosenSetting
from onward.runner.report.report_facts import ReportFacts
from onward.runner.run_folder import RunFolder

DIGITS = tuple("0123456789")
_COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "gradient_norm", "samples_per_second", "data_wait",
    "memory", "val_loss", "val_accuracy",
)  # fmt: skip


def make_run(
    runs: Path, name: str, *, speed: float = 1.0, steps: int = 600, config: str = "", **record: Any
) -> RunFolder:
    """A finished run; `speed` is how fast its loss falls, `record` replaces entries of run.json."""
    folder = RunFolder(runs / name)
    folder.path.mkdir(parents=True)
    rows = _rows(speed, steps)
    with folder.metrics.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    evaluations = [row for row in rows if "val_loss" in row]
    best = max(evaluations, key=lambda row: row["val_accuracy"])
    numbers = ("val_loss", "val_accuracy")
    folder.write_record(
        **{
            "name": name,
            "status": "finished",
            "stopped": "",
            "started": "2026-11-16T14:02:11",
            "finished": "2026-11-16T14:06:23",
            "seconds": 252.3,
            "step": steps,
            "steps": steps,
            "epoch": 3,
            "best": {"step": best["step"], **{key: best[key] for key in numbers}},
            "last": {key: evaluations[-1][key] for key in numbers},
            "monitor": "val_accuracy",
            "higher_is_better": True,
            "model": "cnn.onnx",
            "versions": {"onward": "0.1", "onnxruntime": "1.30.0", "numpy": "2.3.1"},
            "machine": {"system": "Linux", "processor": "x86_64", "cores": 2},
            "command": "onward train cnn.onnx --data digits.npz",
            **record,
        }
    )
    folder.config.write_text(config or 'model = "cnn.onnx"\ndata = "digits.npz"\nepochs = 3\n')
    folder.command.write_text(
        "onward train cnn.onnx --data digits.npz --target label --epochs 3 --learning-rate 0.002 "
        "--schedule one_cycle --crop 2 --seed 7\n"
    )
    return folder


def _rows(speed: float, steps: int) -> list[dict[str, Any]]:
    noise = np.random.default_rng(0).normal(size=steps + 1)
    rows = []
    for step in range(5, steps + 1, 5):
        done = step / steps
        loss = 2.3 * math.exp(-6 * speed * done) + 0.04
        row: dict[str, Any] = {
            "step": step, "epoch": int(3 * done - 1e-9), "loss": loss * (1 + 0.16 * noise[step]),
            "learning_rate": 0.002 * math.sin(math.pi * done) + 1e-5,
            "gradient_norm": 3 * loss**0.5 * (1 + 0.2 * abs(noise[step - 1])),
            "samples_per_second": 4100 + 220 * noise[step - 2], "data_wait": 0.02 + 0.003 * done,
            "memory": 310 * 2**20,
        }  # fmt: skip
        if step % (steps // 12) == 0:
            row["val_loss"] = 2.2 * math.exp(-6.2 * speed * done) + 0.055 + 0.03 * done**3
            row["val_accuracy"] = 0.991 - 0.7 * math.exp(-8 * speed * done) - 0.002 * done**8
        rows.append(row)
    return rows


def make_facts(classes: tuple[str, ...] = DIGITS, **changes: Any) -> ReportFacts:
    """The facts of a classifier of images, with every part that a report can show."""
    random = np.random.default_rng(1)
    count = len(classes)
    confusion = np.diag(random.integers(90, 110, count)) + (random.random((count, count)) > 0.88)
    images, labels = load_digits()
    mistakes = [
        Mistake(
            i, {"image": images[i]}, classes[labels[i] % count], classes[(labels[i] + 3) % count]
        )
        for i in range(40, 58)
    ]
    evaluation = Evaluation(
        550, 2, {"val_loss": 0.07, "val_accuracy": 0.99}, True, confusion, mistakes
    )
    rates = np.linspace(0, 1, 40)
    return ReportFacts(
        **{
            "config": make_config(
                model="cnn.onnx", data="digits.npz", learning_rate=0.002, crop=2, seed=7,
                schedule="one_cycle",
            ).model_dump(),
            "choices": [
                ChosenSetting("loss", "cross_entropy", "target 'label' has 10 classes"),
                ChosenSetting("inputs", "image: [pixels]", "the only column of shape 28x28"),
                ChosenSetting("metrics", "accuracy", "the usual one of cross_entropy"),
            ],
            "evaluation": evaluation, "classes": classes, "trained_parameters": 3_400,
            "all_parameters": 61_706, "roc": (rates, rates**0.25) if count == 2 else None,
            "sizes": {"training rows": 6_400, "validation rows": 1_000}, **changes,
        }
    )  # fmt: skip
