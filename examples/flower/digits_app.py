"""The apps of Flower: digits that never leave their node, and a server that averages.

python examples/flower/run_here.py FOLDER

starts a SuperLink and three SuperNodes on this machine and runs both apps there. Each node has
digits of its own (no node has all ten), by its number: --node-config "partition-id=0".
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np

from onward.training.federated.flower import make_client_app, make_server_app
from onward.training.federated.local_training import LocalSettings

TEST = 500  # images that the server evaluates on
CLASSES = 6  # of the ten, that each node has
LOCAL = LocalSettings(epochs=5, learning_rate=0.1)


def open_digits(config: Mapping[str, Any]) -> dict[str, Any]:
    """The digits of one node."""
    data = load_digits()
    first = 3 * int(config["partition-id"])
    own = np.isin(data["labels"], [(first + k) % 10 for k in range(CLASSES)])
    own[:TEST] = False
    return {name: array[own] for name, array in data.items()}


def open_test(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array[:TEST] for name, array in load_digits().items()}


def load_digits() -> dict[str, Any]:
    """1,797 images of 64 pixels in 0..1, and their labels."""
    with files("onward").joinpath("data/digits.npz").open("rb") as file:
        data = np.load(file)
        pixels = data["images"].astype(np.float32).reshape(-1, 64) / 16
        return {"pixels": pixels, "labels": data["labels"].astype(np.int64)}


client_app = make_client_app(open_digits, metrics=["accuracy"])
server_app = make_server_app(
    local=LOCAL, open_held_out=open_test, evaluate_clients=False, metrics=["accuracy"]
)
