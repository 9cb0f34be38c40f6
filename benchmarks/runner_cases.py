"""The models, data files and settings of benchmarks/runner.py, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES, IMAGE, TIME, WORDS = 64, 10, (3, 32, 32), 64, 96
HIDDEN, CHANNELS, LINEAR = (256, 256), (32, 64), 128
LAYERS, HEADS, WIDTH = 4, 4, 128
RATE, DECAY, CROP = 1e-3, 0.01, 4


@dataclass(frozen=True)
class Case:
    """A model of `onward new`, with the kind of file that it is trained on."""

    architecture: str
    data: str  # the file's name
    batch: int
    options: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)  # of onward.train


_MLP = {"features": FEATURES, "hidden": HIDDEN, "classes": CLASSES}
_CNN = {"image": IMAGE, "channels": CHANNELS, "hidden": LINEAR, "classes": CLASSES, "dropout": 0.0}
_GPT = {"layers": LAYERS, "heads": HEADS, "width": WIDTH, "vocabulary": WORDS, "context": TIME}
_AUGMENT = {"target": "label", "flip": True, "crop": CROP}
CASES = {
    "mlp32": Case("mlp", "table.csv", 32, _MLP, {"target": "label"}),
    "mlp256": Case("mlp", "table.csv", 256, _MLP, {"target": "label"}),
    "cnn32": Case("cnn", "images.npz", 32, _CNN, _AUGMENT),
    "gpt8": Case("gpt2", "text.txt", 8, {**_GPT, "dropout": 0.0}, {"block": TIME}),
}


def prepare(name: str, folder: str) -> None:
    """Write a case's model and data."""
    import onward
    from onward.runner.architectures.new_model import new_model

    case, where = CASES[name], Path(folder)
    onward.save(new_model(case.architecture, **case.options), where / "model.onnx")
    rng = np.random.default_rng(0)
    if case.data == "table.csv":
        x = rng.normal(size=(40_000, FEATURES))
        labels = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(1)
        header = ",".join([*(f"f{i}" for i in range(FEATURES)), "label"])
        kinds = ["%.6g"] * FEATURES + ["%d"]
        rows = np.column_stack([x, labels])
        np.savetxt(where / case.data, rows, kinds, ",", header=header, comments="")
    elif case.data == "images.npz":
        images = rng.integers(0, 256, (10_000, *IMAGE), dtype=np.uint8)
        np.savez(where / case.data, image=images, label=rng.integers(0, CLASSES, 10_000))
    else:
        text = rng.integers(32, 127, 1_000_000).astype(np.uint8)
        (where / case.data).write_bytes(text.tobytes())


def train_settings(name: str, folder: str) -> dict[str, Any]:
    """The settings of `onward.train`; the others are its defaults."""
    case = CASES[name]
    return {
        "model": Path(folder) / "model.onnx",
        "data": Path(folder) / case.data,
        "batch_size": case.batch,
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "schedule": "constant",
        "validation_split": 0.0,
        "threads": 2,
        "save_every": 1000,  # an epoch takes a second or less, for which a checkpoint is much
        "runs": str(Path(folder) / "runs"),
        **case.settings,
    }
