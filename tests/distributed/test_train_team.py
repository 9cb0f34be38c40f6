"""onward.train on two processes: what it trains, measures, saves and resumes equals one process."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import distributed as dist

from onward.distributed.checkpoints.sharded_checkpoints import ShardedCheckpoints
from onward.distributed.join_team import join_team
from onward.errors import DataError, DistributedError, NotFinite, PeerFailed, RunFenced
from onward.runner.callback import Callback
from tests.distributed.group_of_processes import run_processes
from tests.distributed.team_runs import (
    metrics_lines,
    train,
    train_on,
    weights,
    write_lists,
    write_numbers,
    write_table,
    write_text,
)

pytestmark = pytest.mark.integration

TABLE = {"target": "kind"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "classes": (write_table, {**TABLE, "ema": 0.9, "metrics": ["accuracy", "f1", "auc"]}),
    "steps": (
        write_table,
        {**TABLE, "gradient_accumulation_steps": 2, "evaluate_every": 2, "max_grad_norm": 0.5},
    ),
    "unfreezing": (write_table, {**TABLE, "unfreeze_every": 4, "balance": True}),
    "numbers": (
        write_numbers,
        {"target": "price", "metrics": ["mae", "r2", "rmse"], "learning_rate": "auto"},
    ),
    # Adam would enlarge the rounding errors of gradients that are 0, such as of keys' biases
    "text": (write_text, {"data": "rows.txt", "epochs": 1, "optimizer": "sgd"}),
    "padded lists": (write_lists, {"data": "rows.jsonl", "target": "label"}),
}


class StopAt(Callback):
    """Stops the run, or its process, at a step of one process."""

    def __init__(self, rank: int, step: int, how: str) -> None:
        self.rank, self.step, self.how = rank, step, how

    def on_step(self, run: Any, step: Any) -> None:
        if run.team.rank != self.rank or step.number != self.step:
            return
        if self.how == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.how == "error":
            raise ValueError("the callback is broken")


def train_all(rank: int, folders: dict[str, str]) -> dict[str, Any]:
    return {
        name: train_on(rank, folder, {**CASES[name][1], "name": "two"})
        for name, folder in folders.items()
    }


def test_two_processes_train_what_one_trains(together: Together) -> None:
    first, second = together.results["train"]
    for name, (_, settings) in CASES.items():
        place = together.folder / name
        one = train(place, name="one", **settings)
        assert first[name] == second[name], name
        metrics, steps, stopped, _ = first[name]
        assert (steps, stopped) == (one.steps, ""), name
        assert metrics == pytest.approx(one.metrics, abs=1e-6), name
        found, expected = weights(place / "runs/two"), weights(place / "runs/one")
        for key, tensor in expected.items():
            np.testing.assert_allclose(found[key], tensor, atol=2e-6, err_msg=f"{name} {key}")
        lines = metrics_lines(place / "runs/two"), metrics_lines(place / "runs/one")
        assert [line[:2] for line in lines[0]] == [line[:2] for line in lines[1]], name
        numbers = [[float(each or 0) for line in rows[1:] for each in line] for rows in lines]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-5), name
        record = json.loads((place / "runs/two/run.json").read_text())
        assert record["processes"]["count"] == 2 and record["processes"]["backend"] == "gloo"
        assert record["processes"]["bytes_sent_per_step"] > 100


def stop_and_resume(rank: int, folder: str) -> list[Any]:
    settings = {**TABLE, "save_every": 4, "ema": 0.9}
    stop = [StopAt(1, 5, "signal")]
    stopped = train(folder, name="two", callbacks=stop, **settings)
    saves = sorted(each.name for each in Path(folder, "runs/two/checkpoints").glob("step-*/*"))
    assert {*saves} == {"manifest.json", "part-00000.safetensors", "part-00001.safetensors"}
    if rank == 0:  # a copy, which one process will resume
        record = json.loads(Path(folder, "runs/two/run.json").read_text())
        assert record["terminated"]  # SIGTERM, of process 1
        shutil.copytree(Path(folder, "runs/two"), Path(folder, "runs/more"))
    finished = train(folder, name="two", resume=True, **settings)
    return [stopped.steps, stopped.stopped, finished.steps, finished.metrics]


def test_a_stop_of_process_1_stops_both_and_both_resume(together: Together) -> None:
    tmp_path = together.folder / "stopped"
    first, second = together.results["stop"]
    assert first == second
    assert first[:3] == [5, "interrupted", 12]
    settings = {**TABLE, "save_every": 4, "ema": 0.9}
    one = train(tmp_path, name="one", **settings)
    rest = train(tmp_path, name="more", resume=True, **settings)  # from 2 processes to 1
    assert rest.steps == 12
    for name in ("two", "more"):
        found, expected = weights(tmp_path / "runs" / name), weights(tmp_path / "runs/one")
        for key, tensor in expected.items():
            np.testing.assert_allclose(found[key], tensor, atol=2e-6, err_msg=f"{name} {key}")
        assert [line[:2] for line in metrics_lines(tmp_path / "runs" / name)] == [
            line[:2] for line in metrics_lines(tmp_path / "runs/one")
        ]
    assert rest.metrics == pytest.approx(one.metrics, abs=1e-6)


def resume_of_one(rank: int, folder: str) -> list[Any]:
    run = train(folder, name="grows", resume=True, **TABLE)
    return [run.steps, run.metrics]


def test_two_processes_resume_a_run_of_one(together: Together) -> None:
    tmp_path = together.folder / "grows"
    first, second = together.results["grow"]
    assert first == second and first[0] == 12
    train(tmp_path, name="one", **TABLE)
    found, expected = weights(tmp_path / "runs/grows"), weights(tmp_path / "runs/one")
    for key, tensor in expected.items():
        np.testing.assert_allclose(found[key], tensor, atol=2e-6, err_msg=key)


class TakeOver(Callback):
    """Takes the run over, as processes elsewhere would that resume it."""

    def on_step(self, run: Any, step: Any) -> None:
        if run.team.rank == 0 and step.number == 5:
            ShardedCheckpoints(run.folder.checkpoints).take_over()


class BreakData(Callback):
    """Lets the data of one process fail at its third batch."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_start(self, run: Any) -> None:
        if run.team.rank == self.rank:
            run.plan = replace(run.plan, training=BrokenBatches(run.plan.training))


class BrokenBatches:
    """Batches of which the third cannot be read."""

    waited = 0.0

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        yield from itertools.islice(self._batches.epoch(number, start), 2)
        raise DataError("row 7 is broken\nrepair it")


FAILURES: dict[str, dict[str, Any]] = {
    "row": {"callbacks": [BreakData(rank=1)]},
    "nan": {"data": "nan.csv", "standardize": False, "batch_size": 8},
    "fenced": {"callbacks": [TakeOver()], "save_every": 4},
    "early": {"patience": 1, "learning_rate": 1e-9, "epochs": 9},
    "missing": {"data": "only-{rank}.csv"},
    "other": {"data": "other-{rank}.csv"},
    "callback": {"callbacks": [StopAt(1, 3, "error")]},  # last: it ends the group
}


def write_failures(folder: Path) -> None:
    """The data of the runs that fail."""
    write_table(folder)
    text = (folder / "rows.csv").read_text()
    for name in ("only-0", "other-0"):
        (folder / f"{name}.csv").write_text(text)
    lines = text.splitlines()
    (folder / "other-1.csv").write_text("\n".join(lines[:-20]) + "\n")
    huge = ["3e38," + each.split(",", 1)[1] for each in lines[40:43]]
    (folder / "nan.csv").write_text("\n".join([*lines[:40], *huge, *lines[43:]]) + "\n")


def fail(rank: int, folder: str) -> dict[str, Any]:
    """How runs end that only one process has a reason to end."""
    found: dict[str, Any] = {}
    for name, settings in FAILURES.items():
        data = settings.get("data", "rows.csv").format(rank=rank)
        try:
            run = train(folder, name=name, **{**TABLE, **settings, "data": data})
            found[name] = run.steps, run.stopped
        except Exception as error:
            found[name] = type(error), str(error)
        if name == "callback" and rank == 1:
            dist.destroy_process_group()  # as the end of the process does
    return found


def open_own_folder(rank: int, folder: str) -> Any:
    """What a team opens whose processes do not see the same folder."""
    own = Path(folder, f"disk-{rank}")
    own.mkdir()
    return join_team({}).open_checkpoints(own / "checkpoints", keep=1, better="lower")


def call_all(rank: int, folder: str) -> dict[str, Any]:
    """Everything that is tried on two processes; the last part ends the group."""
    return {
        "unshared": open_own_folder(rank, folder),
        "train": train_all(rank, {name: f"{folder}/{name}" for name in CASES}),
        "stop": stop_and_resume(rank, f"{folder}/stopped"),
        "grow": resume_of_one(rank, f"{folder}/grows"),
        "fail": fail(rank, f"{folder}/failures"),
    }


@dataclass(frozen=True)
class Together:
    """What two processes found, by part and rank, and their folder."""

    folder: Path
    results: dict[str, tuple[Any, Any]]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    folder = tmp_path_factory.mktemp("team")
    writers = {name: write for name, (write, _) in CASES.items()}
    writers |= {"stopped": write_table, "grows": write_table, "failures": write_failures}
    for name, write in writers.items():
        (folder / name).mkdir()
        write(folder / name)
    stopped = train(folder / "grows", name="grows", callbacks=[StopAt(0, 4, "signal")], **TABLE)
    assert stopped.steps == 4
    first, second = run_processes(call_all, 2, str(folder))  # starting processes takes seconds
    return Together(folder, {name: (first[name], second[name]) for name in first})


def test_process_0_writes_checkpoints_where_the_others_do_not_see_its_disk(
    together: Together,
) -> None:
    assert together.results["unshared"] == (None, None)
    assert not [*together.folder.glob("disk-*/.shared-*")]


def test_what_ends_one_process_ends_both(together: Together) -> None:
    tmp_path = together.folder / "failures"
    first, second = together.results["fail"]

    assert first["row"] == (DistributedError, "process 1: row 7 is broken\nrepair it")
    assert second["row"][0] is PeerFailed and "row 7 is broken" in second["row"][1]
    assert first["nan"][0] is NotFinite and "inf" in first["nan"][1]  # the node, or the feed
    assert second["nan"] == (PeerFailed, first["nan"][1])
    kind, text = first["fenced"]
    assert kind is RunFenced and "owns the run now, with token 2" in text
    assert second["fenced"] == (PeerFailed, text)
    record = json.loads((tmp_path / "runs/fenced/run.json").read_text())
    assert record["status"] == "running" and not record.get("error")  # others train it now
    assert first["early"] == second["early"]
    assert first["early"] == (12, "no improvement of val_accuracy in 1 evaluation")
    assert first["missing"][1].startswith("process 1: no data at")
    assert "process 1 has other data than process 0" in first["other"][1]
    assert second["other"][0] is PeerFailed
    assert second["callback"] == (ValueError, "the callback is broken")
    message = "process 1 ended the run: ValueError: the callback is broken"
    assert first["callback"] == (PeerFailed, message)
    for name in ("row", "nan"):
        record = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        assert record["status"] == "failed" and record["error"] == first[name][1]
