"""SavedRounds: the files of a federated training, from which it continues after an interruption.

FOLDER/
  checkpoint     the averaged parameters, the number of rounds so far and their history
  model.onnx     the averaged model, for inference
  rounds.jsonl   one line for each round: its clients, rows and numbers
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from onward.graph.paths import make_folder, to_path, writing
from onward.training.federated.averaging import AveragedRound
from onward.training.federated.local_training import LocalTraining

_ROUND, _HISTORY = "federated.round", "federated.history"


class SavedRounds:
    """A folder that holds the state of a federated training after its last round."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = to_path(folder)
        self.checkpoint = self.folder / "checkpoint"
        self.model = self.folder / "model.onnx"
        self.log = self.folder / "rounds.jsonl"

    def open(self, artifacts: str | os.PathLike[str], **options: Any) -> LocalTraining:
        """The artifacts with the parameters of the last saved round, or their own."""
        saved = self.checkpoint if self.checkpoint.exists() else None
        return LocalTraining(artifacts, checkpoint=saved, **options)

    def save(self, training: LocalTraining, record: Mapping[str, Any]) -> None:
        """Write the state after a round; the checkpoint is what a run continues from."""
        history = [*rounds_of(training), dict(record)]
        properties: dict[str, int | float | str] = {
            _ROUND: int(record["round"]),
            _HISTORY: json.dumps(history),
        }
        make_folder(self.folder)
        with writing(self.model):
            if training.has_outputs:
                training.export(self.model)
        training.save(self.checkpoint, properties)
        self.write_log(history)

    def write_log(self, history: list[dict[str, Any]]) -> None:
        new = self.log.with_name(".rounds.jsonl.new")
        with writing(self.log):
            new.write_text("".join(json.dumps(each) + "\n" for each in history), "utf-8")
            new.replace(self.log)


def rounds_of(training: LocalTraining) -> list[dict[str, Any]]:
    """The records of the rounds that are in a training's checkpoint."""
    properties = training.state.properties
    found = json.loads(str(properties[_HISTORY])) if _HISTORY in properties else []
    return list(found)


def describe_round(number: int, averaged: AveragedRound) -> dict[str, Any]:
    """The record of a round, as JSON."""
    return {
        "round": number,
        "clients": list(averaged.clients),
        "rows": averaged.rows,
        "left_out": dict(averaged.left_out),
        **{f"train_{name}": value for name, value in averaged.metrics.items()},
    }
