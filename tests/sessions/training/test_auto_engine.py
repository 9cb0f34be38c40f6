"""providers="auto" in training: engines are measured on the first batch, and the state is kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import onward
from onward.errors import FeedError, OptionError, SessionClosed
from onward.losses import CrossEntropy
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tuning_result import Row, TuningResult
from onward.optimizers import AdamW
from onward.optimizers.ema import EMA
from onward.providers.options import SessionOptions
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.torch.training.executable import TorchTraining
from onward.sessions.training import auto_engine
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"
INDUCTOR = "InductorExecutionProvider"
ON_CPU = {"device": "cpu"}


def session(providers: Any = "auto", **options: Any) -> TrainingSession:
    model = mlp(dropout=0.3)
    return TrainingSession(model, CrossEntropy(), AdamW(lr=0.01), options, providers=providers)


class FakeTuning:
    """Gives torch as the fastest engine, or whatever a test sets."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.rows = [Row(Candidate(TORCH, 0, ON_CPU), 0.001), Row(Candidate(CPU), 0.002)]
        self.error: BaseException | None = None

    def __call__(
        self, program: Any, feeds: Any, write_state: Any, options: Any, **more: Any
    ) -> TuningResult:
        self.calls.append({"feeds": feeds, "options": options, **more})
        more["progress"](0, 3, "CPU")
        if self.error is not None:
            raise self.error
        return TuningResult(self.rows, {name: list(feed.shape) for name, feed in feeds.items()})


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> FakeTuning:
    fake = FakeTuning()
    monkeypatch.setattr(auto_engine, "tune_training", fake)
    return fake


def same(one: TrainingSession, other: TrainingSession) -> None:
    found, expected = one.checkpoint(), other.checkpoint()
    assert found[1] == expected[1]
    assert found[0].keys() == expected[0].keys()
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], expected[0][name], err_msg=name)


# -- for real -------------------------------------------------------------------------------------


@pytest.mark.integration
def test_engines_are_measured_once_and_the_result_is_cached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"providers": ["cpu", "torch"], "seconds": 0.01, "folder": str(tmp_path / "kept")}
    one = session([("auto", given)])
    assert one.tuning_result is None and one.get_providers() == [CPU]
    feeds = batches(3)
    with caplog.at_level(logging.INFO, "onward"):
        one.step(feeds[0])
    assert "auto: measuring 2 engines on the first batch" in caplog.text
    assert "auto: 2 of 3: Torch, device=cpu" in caplog.text
    assert one.tuning_result is not None and one.steps == 1
    assert not any(row.error for row in one.tuning_result.rows)
    chosen = one.tuning_result.rows[0].candidate
    assert one.get_providers() == [chosen.provider]
    other = session([(chosen.provider, chosen.provider_options)])
    other.step(feeds[0])
    caplog.clear()
    third = session([("auto", given)])
    third.step(feeds[0])
    assert "measuring" not in caplog.text
    assert third.tuning_result == one.tuning_result
    for each in feeds[1:]:
        for part in (one, other, third):
            part.step(each)
    same(one, other)
    same(third, other)


@pytest.mark.slow
def test_inductor_is_measured_too(tmp_path: Path) -> None:
    one = session([("auto", {"seconds": 0.01, "folder": str(tmp_path / "kept")})])
    one.step(batches(1)[0])
    assert one.tuning_result is not None
    found = {row.candidate.provider: row.error for row in one.tuning_result.rows}
    assert found[INDUCTOR] in ("", "not tried: torch is much slower")


def test_engines_that_exceed_their_limit_leave_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"providers": ["cpu", "torch"], "limit": 0.01, "folder": str(tmp_path / "kept")}
    one = session([("auto", given)])
    assert np.isfinite(one.step(batches(1)[0])["loss"])
    assert one.get_providers() == [CPU]
    assert "auto: no engine could be measured (CPU): CPU took longer than 0.01 s" in caplog.text
    assert one.tuning_result is not None and len(one.tuning_result.rows) == 2
    assert not (tmp_path / "kept").exists()


# -- the state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_state_is_as_if_the_engine_had_run_from_the_start(
    tuning: FakeTuning, accumulate: int
) -> None:
    options = {"accumulate": accumulate, "average": EMA(decay=0.9), "seed": 5}
    one, other = session(**options), session([(TORCH, ON_CPU)], **options)
    feeds = batches(5)
    parameters, averages = one.parameters, one.averages
    for each in (one, other):
        each.set_parameters({"b1": np.ones(16, np.float32)})
        each.set_learning_rate(0.02)
        each.evaluate(feeds[0])
        each.properties["epoch"] = 3
    assert isinstance(one._engine, OrtTraining)
    for batch in feeds:
        np.testing.assert_array_equal(one.step(batch)["loss"], other.step(batch)["loss"])
    assert isinstance(one._engine, TorchTraining)
    assert one.get_providers() == [TORCH] and len(tuning.calls) == 1
    same(one, other)
    np.testing.assert_array_equal(parameters["w1"], other.parameters["w1"])
    np.testing.assert_array_equal(averages["w1"], other.averages["w1"])


def test_a_checkpoint_with_pending_gradients_moves_too(tuning: FakeTuning) -> None:
    source = session([(TORCH, ON_CPU)], accumulate=2)
    feeds = batches(4)
    for batch in feeds[:3]:
        source.step(batch)
    one = session(accumulate=2)
    one.restore(*source.checkpoint())
    for each in (one, source):
        each.step(feeds[3])
    same(one, source)


def test_a_forward_pass_chooses_the_engine(tuning: FakeTuning) -> None:
    one = session()
    one.run_forward(batches(1)[0])
    one.run_backward()
    assert one.update_weights() and one.get_providers() == [TORCH]


def test_the_current_engine_is_kept_if_it_is_the_fastest(tuning: FakeTuning) -> None:
    tuning.rows.reverse()
    one = session()
    engine = one._engine
    one.step(batches(1)[0])
    assert one._engine is engine and one.get_providers() == [CPU]
    assert one.tuning_result is not None and one.tuning_result.rows == tuning.rows


def test_ctrl_c_leaves_a_session_that_measures_at_the_next_step(tuning: FakeTuning) -> None:
    one, other = session(), session([(TORCH, ON_CPU)])
    [feeds] = batches(1)
    tuning.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        one.step(feeds)
    assert one.steps == 0 and one.tuning_result is None
    tuning.error = None
    one.step(feeds)
    other.step(feeds)
    same(one, other)


def test_training_goes_on_where_nothing_can_be_measured(
    tuning: FakeTuning, caplog: pytest.LogCaptureFixture
) -> None:
    tuning.error = OSError("no space left")
    one = session()
    one.step(batches(1)[0])
    assert one.steps == 1 and one.get_providers() == [CPU] and one.tuning_result is None
    assert "auto: engines cannot be measured: no space left" in caplog.text


def test_a_cached_engine_that_does_not_open_is_measured_again(
    tuning: FakeTuning, caplog: pytest.LogCaptureFixture
) -> None:
    tuning.rows = [Row(Candidate(TORCH, 0, {"device": "nope"}), 0.001)]
    one = session()
    one.step(batches(1)[0])
    assert [call["options"].fresh for call in tuning.calls] == [False, True]
    assert one.get_providers() == [CPU] and one.steps == 1
    assert "auto: Torch, device=nope does not open here: torch has no device 'nope'" in caplog.text


def test_threads_and_settings_reach_the_trials(tuning: FakeTuning) -> None:
    options = SessionOptions(intra_op_num_threads=1, use_deterministic_compute=True)
    one = TrainingSession(
        mlp(), CrossEntropy(), AdamW(), sess_options=options, providers=[("auto", {"limit": 9})]
    )
    tuning.rows.reverse()
    one.step(batches(1)[0])
    [call] = tuning.calls
    assert (call["options"].threads, call["options"].limit) == (1, 9)
    assert call["settings"] == {"use_deterministic_compute": True}


def test_tensors_of_torch_are_measured_as_arrays(tuning: FakeTuning) -> None:
    one = session()
    results = one.step({name: torch.from_numpy(array) for name, array in batches(1)[0].items()})
    assert isinstance(results["loss"], torch.Tensor)
    assert all(isinstance(feed, np.ndarray) for feed in tuning.calls[0]["feeds"].values())


# -- without a choice -----------------------------------------------------------------------------


def test_a_saved_program_runs_on_onnxruntime(tuning: FakeTuning, tmp_path: Path) -> None:
    folder = session([CPU]).program.save(tmp_path / "program")
    one = TrainingSession(folder, providers="auto")
    one.step(batches(1)[0])
    assert not tuning.calls
    assert one.get_providers() == [CPU] and one.tuning_result is None


def test_onnxruntime_alone_is_not_measured(
    tuning: FakeTuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.measure.tuning.tune_training.available", lambda: [CPU])
    one = session()
    one.step(batches(1)[0])
    assert not tuning.calls and one.get_providers() == [CPU]


# -- wrong input ----------------------------------------------------------------------------------


def test_wrong_feeds_and_empty_batches_are_not_measured(tuning: FakeTuning) -> None:
    one = session()
    [feeds] = batches(1)
    with pytest.raises(FeedError, match="feeds must be a dictionary of arrays, not list"):
        one.step([1])  # type: ignore[arg-type]
    with pytest.raises(FeedError, match="'x'"):
        one.step({**feeds, "x": feeds["x"][:, :3]})
    with pytest.raises(FeedError, match="labels"):
        one.step({**feeds, "labels": feeds["labels"] + 9})
    assert np.isnan(one.step({name: array[:0] for name, array in feeds.items()})["loss"])
    assert not tuning.calls
    one.step(feeds)
    assert one.get_providers() == [TORCH] and one.steps == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["auto", CPU], '"auto" cannot be combined with other providers'),
        ([("auto", {"second": 1})], "auto has no option 'second'"),
        ([("auto", {"seconds": "long"})], "seconds must be a time above 0, not long"),
        ([("auto", 3)], "the options of auto must be a dictionary, not int"),
        ([("auto", {"providers": ["reference"]})], "auto measures training on CPU"),
    ],
)
def test_wrong_options_are_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        session(given)


def test_isolation_is_refused() -> None:
    options = onward.SessionOptions(isolated=True)
    with pytest.raises(OptionError, match="auto is not available with isolated"):
        TrainingSession(mlp(), CrossEntropy(), AdamW(), sess_options=options, providers="auto")


def test_a_closed_session_measures_nothing(tuning: FakeTuning) -> None:
    one = session()
    one.close()
    with pytest.raises(SessionClosed):
        one.step(batches(1)[0])
    assert not tuning.calls
