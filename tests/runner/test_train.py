"""onward.train: a whole run, interrupted and resumed, and the files that it leaves."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import (
    CheckpointMismatch,
    DataError,
    FileExists,
    NotFinite,
    OptionError,
    OptionTypeError,
)
from onward.runner.callback import Callback
from onward.runner.config import TrainConfig
from onward.runner.plan.make_plan import make_plan

Array = np.ndarray[Any, Any]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of 4 numbers whose largest is the class, and a model for it, in this folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 4))
    with open("rows.csv", "w") as file:
        file.write("a,b,c,d,kind\n")
        for row in x:
            kind = "pqrs"[int(row.argmax())]
            file.write(",".join(f"{value:.6f}" for value in row) + f",{kind}\n")
    model = onward.new_model("mlp", features=4, hidden=(16,), classes=4, dropout=0.1)
    onward.save(model, "m.onnx")
    return tmp_path


def train(**changes: Any) -> Any:
    settings = {"epochs": 3, "batch_size": 16, "learning_rate": 0.02, **changes}
    return onward.train("m.onnx", "rows.csv", target="kind", **settings)


def weights(run: Any) -> dict[str, bytes]:
    """The exported weights; the graph itself may have been written in another order."""
    values = onward.load(run.model).graph.initializers.values()
    return {str(v.name): v.const_value.numpy().tobytes() for v in values if v.const_value}


def rows(run: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(run.folder.metrics.read_text().splitlines()))


def without_clocks(run: Any) -> list[dict[str, str]]:
    clocks = ("samples_per_second", "data_wait", "memory")
    return [{key: value for key, value in row.items() if key not in clocks} for row in rows(run)]


class StopAt(Callback):
    """Interrupts the process, or the run, at a step."""

    def __init__(self, step: int, how: str = "signal") -> None:
        self.step, self.how = step, how

    def on_step(self, run: Any, step: Any) -> None:
        if step.number == self.step and self.how == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        if step.number == self.step and self.how == "error":
            raise DataError("row 7 is broken")


class CountRows(Callback):
    """Notes the rows that were trained on, at some steps."""

    steps_between = 4

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def on_step(self, run: Any, step: Any) -> None:
        self.found.append((step.number, run.rows))


def test_a_callback_may_leave_out_steps(table: Path) -> None:
    callback = CountRows()
    train(epochs=1, callbacks=[callback], batch_size=8, gradient_accumulation_steps=2)
    assert callback.found == [(4, 4 * 16), (8, 8 * 16)]


class NoteLosses(Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step(self, run: Any, step: Any) -> None:
        self.found.append(step.loss)


def test_the_loss_of_a_step_is_the_mean_over_its_batches(table: Path) -> None:
    onward.save(onward.new_model("mlp", features=4, hidden=(16,), classes=4), "m.onnx")
    losses = []
    for accumulated in (1, 2):
        callback = NoteLosses()
        still = {"optimizer": "sgd", "learning_rate": 1e-12, "epochs": 1, "batch_size": 8}
        train(callbacks=[callback], gradient_accumulation_steps=accumulated, **still)
        losses.append(callback.found)
    each, means = losses
    pairs = np.reshape(each[: 2 * len(means)], (-1, 2)).mean(1)
    np.testing.assert_allclose(means, pairs, rtol=1e-6)
    assert np.abs(np.diff(each)).max() > 0.01


def test_a_run_leaves_a_model_and_everything_about_it(table: Path) -> None:
    run = train(epochs=10)
    assert run.folder.path == Path("runs/m-1")
    assert run.steps == 90 and not run.stopped
    assert run.metrics["val_accuracy"] > 0.6
    for file in ("config.toml", "command.txt", "run.json", "metrics.csv", "report.html"):
        assert (run.folder.path / file).stat().st_size
    assert (run.folder.path / "curves.png").exists() or (run.folder.path / "curves.svg").exists()
    record = json.loads(run.folder.record.read_text())
    assert record["status"] == "finished" and record["step"] == 90
    assert record["best"]["val_accuracy"] == run.metrics["val_accuracy"]
    assert run.folder.command.read_text() == "onward train --config runs/m-1/config.toml\n"
    evaluated = [row for row in rows(run) if row["val_loss"]]
    assert [int(row["step"]) for row in evaluated] == [9 * n for n in range(1, 11)]


@pytest.mark.integration
def test_the_exported_model_is_the_best_one(table: Path) -> None:
    run = train(epochs=6, learning_rate=0.3, validation_split=0.3)
    numbers = [float(row["val_accuracy"]) for row in rows(run) if row["val_accuracy"]]
    assert run.metrics["val_accuracy"] == pytest.approx(max(numbers))
    found = onward.train(
        str(run.model), "rows.csv", target="kind", max_steps=1, learning_rate=1e-9,
        validation_split=0.3, standardize=None,
    )  # fmt: skip
    # the same rows are held out
    assert found.metrics["val_accuracy"] == run.metrics["val_accuracy"]


def test_best_of_equal_metrics_has_the_lowest_loss(table: Path) -> None:
    class Evaluations(Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[float, float]] = []

        def on_evaluate(self, run: Any, evaluation: Any) -> None:
            numbers = evaluation.numbers
            self.seen.append((numbers["val_accuracy"], -numbers["val_loss"]))

    evaluations = Evaluations()
    run = train(epochs=12, callbacks=[evaluations])
    best = max(evaluations.seen)
    assert [each[0] for each in evaluations.seen].count(best[0]) > 1
    assert (run.metrics["val_accuracy"], -run.metrics["val_loss"]) == best


@pytest.mark.integration
def test_the_first_run_is_kept_and_the_next_has_another_number(table: Path) -> None:
    assert [train(epochs=1).folder.name for _ in range(2)] == ["m-1", "m-2"]
    train(epochs=1, name="mine")
    with pytest.raises(FileExists, match="--resume, or give another --name"):
        train(epochs=1, name="mine")


RESUMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"ema": 0.9, "evaluate_every": 4, "save_every": 5},
    "accumulated": {"gradient_accumulation_steps": 2, "optimizer": "sgd", "balance": True},
    "unfrozen": {"unfreeze_every": 7, "schedule": "linear", "warmup": 0.2},
}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "settings"),
    [pytest.param("signal", settings, id=f"signal-{name}") for name, settings in RESUMED.items()]
    + [
        pytest.param(
            "error", settings, id=f"error-{name}", marks=[pytest.mark.slow] * (name != "plain")
        )
        for name, settings in RESUMED.items()
    ],
)
def test_a_resumed_run_ends_in_the_same_weights(
    table: Path, settings: dict[str, Any], how: str
) -> None:
    whole = train(name="whole", **settings)
    for step in (3, 8):
        again = {"name": "parts", "resume": step > 3, "callbacks": [StopAt(step, how)], **settings}
        if how == "error":
            with pytest.raises(DataError, match="row 7"):
                train(**again)
        else:
            stopped = train(**again)
            assert stopped.stopped == "interrupted" and stopped.steps == step
    parts = train(name="parts", resume=True, **settings)
    assert weights(parts) == weights(whole)
    assert without_clocks(parts) == without_clocks(whole)
    assert parts.metrics == whole.metrics


@pytest.mark.integration
def test_the_same_call_finds_its_run(table: Path) -> None:
    train(epochs=2)
    train(callbacks=[StopAt(4)])
    run = train(resume=True)
    assert run.folder.name == "m-2" and run.steps == 27
    with pytest.raises(OptionError, match="no run in runs has the same settings"):
        train(resume=True, learning_rate=0.5)


@pytest.mark.parametrize("name", [None, "m-1"])
def test_a_finished_run_is_made_longer(table: Path, name: str | None) -> None:
    still = {"schedule": "constant", "threads": 1}
    whole = train(epochs=4, runs="others", **still)
    assert train(epochs=2, **still).steps == 18
    run = train(epochs=4, name=name, resume=True, **still)
    assert run.folder.name == "m-1" and run.steps == 36
    assert weights(run) == weights(whole) and run.metrics == whole.metrics
    assert "epochs = 4" in run.folder.config.read_text()
    assert run.folder.read_record()["epochs"] == 4
    with pytest.raises(CheckpointMismatch, match="made 36 steps, and is to make 27\ngive it more"):
        train(epochs=3, name="m-1", resume=True, **still)


@pytest.mark.parametrize(
    "changed",
    [
        {"batch_size": 5},
        {"seed": 1},
        {"validation_split": 0.3},
        {"gradient_accumulation_steps": 2},
        {"balance": True},
        {"monitor": "val_f1"},
        {"optimizer": "adam"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_that_move_a_resumed_run_are_refused(table: Path, changed: dict[str, Any]) -> None:
    train(epochs=1, name="mine")
    [name] = changed
    with pytest.raises(OptionError, match=f"{name} cannot change .* runs/mine was started with"):
        train(**{"epochs": 2, "name": "mine", "resume": True, **changed})


def test_data_that_has_changed_is_refused(table: Path) -> None:
    train(epochs=1, name="mine")
    with open("rows.csv", "a") as file:
        file.write("1,0,0,0,p\n" * 20)
    with pytest.raises(CheckpointMismatch, match="has 162 training rows, and had 144 when"):
        train(epochs=2, name="mine", resume=True)


def test_data_of_the_same_length_with_other_values_is_refused(table: Path) -> None:
    train(epochs=1, name="mine")
    lines = Path("rows.csv").read_text().splitlines()
    Path("rows.csv").write_text("\n".join([*lines[:-1], lines[-1].replace(",", ",1", 1)]))
    with pytest.raises(CheckpointMismatch, match="saved: column 'b' has other values"):
        train(epochs=2, name="mine", resume=True)
    Path("rows.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]))
    with pytest.raises(CheckpointMismatch, match="columns 'a', 'b', 'c', 'd', 'kind' have other"):
        train(epochs=2, name="mine", resume=True)
    Path("rows.csv").write_text("\r\n".join(lines))  # the same rows
    assert train(epochs=2, name="mine", resume=True).steps == 18


def test_a_run_that_stopped_early_goes_on_only_if_it_is_asked_to(table: Path) -> None:
    still = {"learning_rate": 1e-9, "validation_split": 0.3, "name": "early", "epochs": 8}
    assert train(patience=2, **still).steps == 3 * 7
    for _ in range(2):
        run = train(patience=2, resume=True, **still)
        assert run.steps == 3 * 7 and "give more --patience or --epochs" in run.stopped
    assert train(patience=3, resume=True, **still).steps == 4 * 7
    assert train(patience=3, resume=True, **{**still, "epochs": 9}).steps == 7 * 7
    assert train(resume=True, **{**still, "epochs": 9}).steps == 9 * 7


@pytest.mark.parametrize("given", [print, Callback], ids=["function", "class"])
def test_callbacks_are_objects_of_callbacks(table: Path, given: Any) -> None:
    with pytest.raises(OptionTypeError, match=r"callbacks\[1\] is .*, not a Callback"):
        train(callbacks=[NoteLosses(), given])


def test_callbacks_are_a_list(table: Path) -> None:
    with pytest.raises(OptionTypeError, match=r"callbacks is .*, not a list\ngive one: callbacks="):
        train(callbacks=NoteLosses())


@pytest.mark.parametrize("given", [{"zero": 1}, {"offload": True}])
def test_settings_of_shards_need_shards(table: Path, given: dict[str, Any]) -> None:
    [name] = given
    with pytest.raises(OptionError, match=f"{name} says what processes share, but shard is 1"):
        train(**given)


def test_patience_needs_rows_that_are_held_out(table: Path) -> None:
    with pytest.raises(OptionError, match="patience counts evaluations, and no rows are held out"):
        train(patience=2, validation_split=0)


def test_a_resumed_run_takes_a_lower_learning_rate(table: Path) -> None:
    still = {"schedule": "constant", "log_every": 1, "name": "mine"}
    train(epochs=1, **still)
    run = train(epochs=2, learning_rate=0.001, resume=True, **still)
    rates = [float(row["learning_rate"]) for row in rows(run) if row["learning_rate"]]
    assert rates == [0.02] * 9 + [0.001] * 9


@pytest.mark.integration
def test_an_interruption_during_an_evaluation_is_made_up_for(table: Path) -> None:
    class StopInEvaluation(Callback):
        def on_start(self, run: Any) -> None:
            make = run.plan.make_metrics

            def interrupted() -> Any:
                os.kill(os.getpid(), signal.SIGINT)
                return make()

            object.__setattr__(run.plan, "make_metrics", interrupted)

    whole = train(epochs=2, name="whole")
    stopped = train(epochs=2, name="parts", callbacks=[StopInEvaluation()])
    assert stopped.stopped == "interrupted" and not stopped.metrics
    parts = train(epochs=2, name="parts", resume=True)
    assert weights(parts) == weights(whole) and parts.metrics == whole.metrics


def test_numbers_that_are_not_finite_stop_a_run_before_the_weights(table: Path) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    w = op.initializer("w", np.ones((4, 4), "f4"))
    onward.save(op.model(scores=op.Log(op.MatMul(x, w))), "m.onnx")
    with pytest.raises(NotFinite, match=r"step 1 .* rows .*Log.*\n.*--on-nan skip"):
        train(name="nan", standardize=True)
    record = json.loads(Path("runs/nan/run.json").read_text())
    assert record["status"] == "failed" and "Log" in record["error"]
    kept = onward.load("runs/nan/model.onnx").graph.initializers["w"].const_value
    assert kept is not None and np.array_equal(kept.numpy(), np.ones((4, 4), "f4"))
    assert train(name="skipped", standardize=True, on_nan="skip", epochs=1).steps == 9


@pytest.mark.integration
def test_data_that_is_not_finite_is_named_by_its_row(table: Path) -> None:
    good = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    bad = good.copy()
    bad[[5, 20], 1] = np.nan
    label = np.arange(32) % 4
    settings = {"target": "label", "epochs": 1, "batch_size": 32}
    with pytest.raises(NotFinite) as caught:
        onward.train("m.onnx", {"x": bad, "label": label}, validation_split=0, **settings)
    text = str(caught.value)
    assert "row" in text and {*text.split("rows ")[1].split(":")[0].split(", ")} == {"5", "20"}
    assert "feed 'x' has 2 nan of 128 numbers\n" in text and "correct the data, or leave" in text
    held = {"x": bad[16:], "label": label[16:]}
    with pytest.raises(NotFinite, match=r"evaluation at step 1: row 4: feed 'x' .*\ncorrect the"):
        onward.train("m.onnx", {"x": good, "label": label}, validation=held, **settings)


def test_patience_ends_a_run(table: Path) -> None:
    run = train(epochs=50, learning_rate=1e-6, patience=2, monitor="val_accuracy")
    assert run.stopped == "no improvement of val_accuracy in 2 evaluations"
    assert run.steps < 450


def test_a_run_without_validation_exports_the_last_weights(table: Path) -> None:
    run = train(epochs=1, validation_split=0)
    assert run.metrics == {} and run.model.exists()


def test_nothing_is_left_of_a_run_that_cannot_begin(table: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'epochs'"):
        train(epoch=1)
    with pytest.raises(DataError, match="did you mean 'kind'"):
        onward.train("m.onnx", "rows.csv", target="kinds")
    with pytest.raises(OptionError, match="no model"):
        onward.train(data="rows.csv")
    assert not Path("runs").exists()


@pytest.mark.integration
def test_automatic_settings_are_measured_once(table: Path) -> None:
    run = train(epochs=1, learning_rate="auto", callbacks=[StopAt(2)])
    found = run.folder.read_record()["resolved"]["learning_rate"]
    assert 1e-6 < found < 10
    again = train(epochs=1, learning_rate="auto", resume=True)
    assert again.folder.read_record()["resolved"]["learning_rate"] == found


def test_rows_of_python_are_data(table: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(64, 4)).astype("f4")
    run = onward.train(
        onward.load("m.onnx"), {"x": x, "label": x.argmax(1)}, target="label", epochs=1
    )
    assert run.folder.name == "run-1" and run.metrics


def test_pair_of_arrays_is_trained_as_a_file_is(table: Path) -> None:
    x = np.random.default_rng(0).normal(size=(160, 4)).round(6)
    kinds = ["pqrs"[place] for place in x.argmax(1)]
    settings = {"epochs": 1, "batch_size": 16, "standardize": False}  # columns of a table are
    run = onward.train("m.onnx", (x, kinds), **settings)
    assert weights(run) == weights(train(learning_rate=None, **settings))
    choices = make_plan(TrainConfig(), "m.onnx", (x, kinds)).choices
    assert {each.what: each.why for each in choices}["target"] == "the second of the pair"


def test_pair_trains_an_autoencoder_to_its_second(table: Path) -> None:
    model = onward.new_model("autoencoder", features=4)
    noisy, clean = np.ones((40, 4), np.float32), np.zeros((40, 4), np.float32)
    assert make_plan(TrainConfig(), model, (noisy, clean)).target == "target"
    of_rows = make_plan(TrainConfig(), model, [(row, 1) for row in noisy])  # labels are not used
    assert "the shape of this input" in {c.what: c.why for c in of_rows.choices}["target"]


def test_iterator_is_read_once_although_a_rate_is_searched(table: Path) -> None:
    x = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
    data = ((row, int(row.argmax())) for row in x)
    assert onward.train("m.onnx", data, epochs=1, learning_rate="auto").steps == 5


def make_rows(path: str) -> Any:
    return []


@pytest.mark.parametrize("name", ["model", "data", "validation"])
def test_function_instead_of_its_result_is_named(table: Path, name: str) -> None:
    given = {"model": "m.onnx", "data": "rows.csv", name: make_rows}
    message = rf"^{name} is the function make_rows, not what it returns\ncall it: make_rows\(path\)"
    with pytest.raises(DataError, match=message):
        onward.train(**given)
