"""A client's training over artifacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import (
    ColumnMissing,
    DataError,
    FeedError,
    NotFinite,
    OptionError,
    OptionTypeError,
)
from onward.runner.data.open_data import open_data
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.artifacts import OptimType
from onward.training.federated.local_training import LocalSettings, LocalTraining
from tests.training.federated.digit_clients import make_artifacts, make_data


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifacts(tmp_path_factory.mktemp("adam"), OptimType.AdamW)


class NoRows:
    columns = open_data(make_data(1, seed=0)).columns

    def __len__(self) -> int:
        return 0

    def read(self, positions: Any, columns: Any = None) -> dict[str, Any]:
        raise AssertionError


def test_a_client_learns_and_reports_its_rows_and_loss(artifacts: Path) -> None:
    client = LocalTraining(artifacts, metrics=["accuracy"])
    start, data = client.parameters, make_data(90, seed=1)
    before = client.evaluate(start, data).metrics
    local = LocalSettings(epochs=8, batch_size=16, learning_rate=0.05)
    parameters, rows, metrics = client.fit(start, data, local)
    after = client.evaluate(parameters, data).metrics
    assert rows == 90 and metrics["loss"] < before["loss"]
    assert after["loss"] < before["loss"] and after["accuracy"] > 0.9
    assert [each.shape for each in parameters] == [each.shape for each in start]


def test_a_client_that_skipped_every_update_fails(artifacts: Path) -> None:
    client, data = LocalTraining(artifacts), make_data(40, seed=1)
    one = {**data, "x": np.where(np.arange(40)[:, None] == 3, np.nan, data["x"])}
    assert client.fit(client.parameters, one).metrics["skipped_steps"] == 1
    with pytest.raises(NotFinite, match="gradients were not finite in any of 2 steps"):
        client.fit(client.parameters, {**data, "x": data["x"] * np.nan})


def test_each_round_starts_a_new_optimizer(artifacts: Path) -> None:
    client, data = LocalTraining(artifacts), make_data(40, seed=1)
    start = client.parameters
    local = LocalSettings(learning_rate=0.05)
    first = client.fit(start, data, local, round_number=3)
    client.fit(first.parameters, make_data(40, seed=2), local)
    again = client.fit(start, data, local, round_number=3)
    assert all(np.array_equal(a, b) for a, b in zip(first.parameters, again.parameters))
    other = client.fit(start, data, local, round_number=4)  # another order of rows
    assert not all(np.array_equal(a, b) for a, b in zip(first.parameters, other.parameters))


def test_a_fit_takes_the_steps_of_a_plain_loop(artifacts: Path) -> None:
    data = make_data(24, seed=1)
    client = LocalTraining(artifacts)
    local = LocalSettings(epochs=3, batch_size=24, learning_rate=0.05)
    found = client.fit(client.parameters, data, local).parameters
    state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    model = Module(artifacts / "training_model.onnx", state)
    optimizer = Optimizer(artifacts / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(0.05)
    for _ in range(3):
        model(data["x"], data["labels"])
        optimizer.step()
        model.lazy_reset_grad()
    for name, array in zip(client.names, found):
        np.testing.assert_allclose(array, state.parameters[name].data, rtol=1e-4, atol=1e-5)


def test_the_proximal_term_keeps_a_client_near_the_start(artifacts: Path) -> None:
    client, data = LocalTraining(artifacts), make_data(40, seed=1)
    start = client.parameters

    def distance(proximal: float) -> float:
        local = LocalSettings(epochs=5, learning_rate=0.05, proximal=proximal)
        found = client.fit(start, data, local).parameters
        return sum(float(((a - b) ** 2).sum()) for a, b in zip(found, start))

    assert distance(0.0) > 1.5 * distance(1.0) > 1.5 * distance(100.0) > 0


def test_running_statistics_are_exchanged_too(tmp_path: Path) -> None:
    client = LocalTraining(make_artifacts(tmp_path, norm=True))
    assert {"norm.mean", "norm.var"} < set(client.names)
    start = client.parameters
    found = dict(zip(client.names, client.fit(start, make_data(40, seed=1)).parameters))
    assert not np.array_equal(found["norm.mean"], dict(zip(client.names, start))["norm.mean"])


def test_data_and_parameters_that_do_not_fit_are_refused(artifacts: Path) -> None:
    client = LocalTraining(artifacts)
    data = make_data(8, seed=1)
    with pytest.raises(ColumnMissing, match=r"no column 'labels', .*\ndid you mean 'label'"):
        client.fit(client.parameters, {"x": data["x"], "label": data["labels"]})
    with pytest.raises(FeedError, match="1 parameters were given, the model has 3"):
        client.fit(client.parameters[:1], data)
    with pytest.raises(FeedError, match=r"'fc1.weight' is float32 of shape \(4, 8\)"):
        client.fit([each.T for each in client.parameters], data)
    with pytest.raises(DataError, match="no rows to evaluate"):
        client.evaluate(client.parameters, NoRows())


def test_settings_are_checked(artifacts: Path) -> None:
    with pytest.raises(OptionError, match=r"LocalSettings.epochs must be a whole number"):
        LocalSettings(epochs=0)
    with pytest.raises(OptionTypeError, match=r"no setting 'epoch'\ndid you mean 'epochs'"):
        LocalSettings(epoch=1)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=r"no metric 'acuracy'"):
        LocalTraining(artifacts, metrics=["acuracy"])
    with pytest.raises(OptionError, match=r"no output 'score' to measure\ndid you mean 'scores'"):
        LocalTraining(artifacts, metrics=["accuracy"], output="score")


def test_a_client_needs_no_onnx(artifacts: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from onward.training.federated.local_training import LocalTraining\n"
        f"client = LocalTraining({str(artifacts)!r}, metrics=['accuracy'])\n"
        "data = {'x': np.ones((4, 4), np.float32), 'labels': np.zeros(4, np.int64)}\n"
        "result = client.fit(client.parameters, data)\n"
        "client.evaluate(result.parameters, data)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxscript", "torch", "flwr", "pydantic"} & set(loaded)
