"""Federated averaging of several clients in one process."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from onward.errors import CheckpointMismatch, OptionError
from onward.training.federated.local_training import LocalSettings, LocalTraining
from onward.training.federated.simulation import simulate
from tests.training.federated.digit_clients import make_artifacts, make_data

LOCAL = LocalSettings(epochs=2, batch_size=16, learning_rate=0.1)
CLIENTS = {
    "a": make_data(60, 1, classes=(0, 1)),
    "b": make_data(90, 2, classes=(1, 2)),
    "c": make_data(30, 3, classes=(0, 2)),
}
HELD_OUT = make_data(200, 9)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifacts(tmp_path_factory.mktemp("sgd"))


def run(artifacts: Path, rounds: int = 4, clients: Any = CLIENTS, **options: Any) -> Any:
    return simulate(artifacts, clients, rounds=rounds, local=LOCAL, **options)


def test_clients_with_different_classes_learn_all_of_them(artifacts: Path) -> None:
    found = run(artifacts, rounds=6, held_out=HELD_OUT, metrics=["accuracy"])
    assert [each["round"] for each in found.rounds] == [1, 2, 3, 4, 5, 6]
    assert found.rounds[-1]["held_out_accuracy"] > 0.9
    assert found.rounds[0]["rows"] == 180 and found.rounds[0]["clients"] == ["a", "b", "c"]
    whole = LocalTraining(artifacts, metrics=["accuracy"])
    data = {n: np.concatenate([each[n] for each in CLIENTS.values()]) for n in ("x", "labels")}
    central = LocalSettings(epochs=12, batch_size=16, learning_rate=0.1)
    best = whole.evaluate(whole.fit(whole.parameters, data, central).parameters, HELD_OUT)
    assert found.rounds[-1]["held_out_accuracy"] > best.metrics["accuracy"] - 0.03


def test_the_order_of_clients_changes_no_bit(artifacts: Path) -> None:
    first = run(artifacts, rounds=2).parameters
    other = run(artifacts, rounds=2, clients=dict(reversed(CLIENTS.items()))).parameters
    assert [each.tobytes() for each in first] == [each.tobytes() for each in other]


def test_a_run_that_was_interrupted_continues_to_the_same_parameters(
    artifacts: Path, tmp_path: Path
) -> None:
    whole = run(artifacts, folder=tmp_path / "whole", held_out=HELD_OUT)
    seen: list[int] = []

    def interrupt(record: dict[str, Any]) -> None:
        seen.append(record["round"])
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(artifacts, folder=tmp_path / "parts", held_out=HELD_OUT, on_round=interrupt)
    parts = run(artifacts, folder=tmp_path / "parts", held_out=HELD_OUT, on_round=interrupt)
    assert seen == [1, 2, 3, 4] and parts.rounds == whole.rounds
    assert [a.tobytes() for a in parts.parameters] == [b.tobytes() for b in whole.parameters]
    lines = (tmp_path / "parts/rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole.rounds
    session = onnxruntime.InferenceSession(tmp_path / "parts/model.onnx")
    [scores] = session.run(["scores"], {"x": HELD_OUT["x"]})
    assert (scores.argmax(axis=1) == HELD_OUT["labels"]).mean() > 0.8
    assert run(artifacts, folder=tmp_path / "parts", on_round=interrupt).rounds == whole.rounds
    assert len(seen) == 4


def test_a_folder_of_another_model_is_refused(artifacts: Path, tmp_path: Path) -> None:
    run(artifacts, rounds=1, folder=tmp_path / "run")
    other = make_artifacts(tmp_path / "other", hidden=5)
    with pytest.raises(CheckpointMismatch, match="of another model"):
        run(other, rounds=2, folder=tmp_path / "run")


def test_clients_that_fail_are_left_out(
    artifacts: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def lost() -> Any:
        raise OSError("the disk was removed")

    wrong = {"x": CLIENTS["a"]["x"], "labels": CLIENTS["a"]["labels"] + 7}
    clients = {**CLIENTS, "lost": lost, "wrong": wrong, "absent": tmp_path / "none.npz"}
    with caplog.at_level(logging.WARNING, "onward"):
        found = run(artifacts, rounds=1, clients=clients)
    [record] = found.rounds
    assert record["clients"] == ["a", "b", "c"]
    assert record["left_out"]["lost"] == "the disk was removed"
    assert "classes go from 0 to 2" in record["left_out"]["wrong"]
    assert "no data at" in record["left_out"]["absent"]
    same = run(artifacts, rounds=1).parameters
    assert [a.tobytes() for a in found.parameters] == [b.tobytes() for b in same]


def test_a_share_of_the_clients_trains_in_each_round(artifacts: Path) -> None:
    chosen = [each["clients"] for each in run(artifacts, share=0.6).rounds]
    assert all(len(names) == 2 for names in chosen) and len({*map(tuple, chosen)}) > 1
    assert [each["clients"] for each in run(artifacts, share=0.6).rounds] == chosen


@pytest.mark.parametrize(
    ("options", "law"),
    [({"rounds": 0}, "rounds must be"), ({"clients": []}, "no clients"), ({"share": 2}, "share")],
)
def test_settings_that_make_no_sense_are_refused(
    artifacts: Path, options: dict[str, Any], law: str
) -> None:
    with pytest.raises(OptionError, match=law):
        run(artifacts, **options)
