"""auto: candidates are measured separately, must agree with onnxruntime, and results are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import onward
from onward.errors import FeedError, OptionError, ProviderError
from onward.measure.tuning import tune as tuning
from onward.measure.tuning.trials import BARE, CallTimes, Candidate, FirstRun, Trial
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import Row, TuningResult
from onward.sessions import auto_plan

CPU = "CPUExecutionProvider"
QUICK = {"seconds": 0.01, "providers": [CPU]}


def doubled(*shape: Any) -> onward.OpBuilder:
    op = onward.OpBuilder()
    x = op.input("x", "float32", shape)
    return op.model(y=op.Add(x, x))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onward.save(doubled("batch", 4), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


FEEDS = {"x": np.ones((2, 4), np.float32)}


def run_trial(
    model: Path, candidate: Candidate, feeds: dict[str, Any], *, seconds: float = 1.0
) -> tuple[FirstRun, CallTimes]:
    """Open and measure a candidate once."""
    with Trial(model, candidate, feeds) as trial:
        return trial.open(), trial.measure(seconds)


# -- trials ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [BARE, CPU])
def test_a_trial_measures_times_memory_and_outputs(path: Path, provider: str) -> None:
    opening, timing = run_trial(path, Candidate(provider, threads=1), FEEDS, seconds=0.01)
    np.testing.assert_array_equal(opening.outputs[0], np.full((2, 4), 2, np.float32))
    assert len(timing.times) >= 3
    assert timing.median > 0
    assert timing.p99 >= timing.median
    assert timing.memory > 1 << 20


def test_a_trial_can_be_asked_again(path: Path) -> None:
    with Trial(path, Candidate(CPU, threads=1), FEEDS) as trial:
        trial.open()
        assert trial.measure(0.0).times
        assert trial.measure(0.0).times


def test_a_failing_trial_reports_the_error(path: Path) -> None:
    with pytest.raises(ProviderError, match="no provider 'Nope'"):
        run_trial(path, Candidate("Nope"), FEEDS)


def test_a_trial_that_dies_reports_its_exit_code(path: Path) -> None:
    child = ("-c", "import sys; sys.exit('out of luck')")
    with (
        Trial(path, Candidate(CPU), FEEDS, child=child) as trial,
        pytest.raises(ProviderError, match=r"CPU died with exit code 1 .* it printed: out of luck"),
    ):
        trial.open()


def test_a_trial_that_exceeds_its_limit_is_killed(path: Path) -> None:
    child = ("-c", "import threading; threading.Event().wait()")
    with (
        Trial(path, Candidate(CPU), FEEDS, child=child) as trial,
        pytest.raises(ProviderError, match=r"CPU took longer than 0.05 s"),
    ):
        trial.open(timeout=0.05)


@pytest.mark.parametrize(
    ("dtype", "feed"),
    [
        ("bfloat16", np.array([1.5, -2], ml_dtypes.bfloat16)),
        ("string", np.array(["on", "ward"], np.object_)),
        ("bool", np.array([True, False])),
    ],
)
def test_all_types_of_feeds_reach_the_child(tmp_path: Path, dtype: str, feed: Any) -> None:
    op = onward.OpBuilder()
    onward.save(op.model(y=op.Identity(op.input("x", dtype, (2,)))), tmp_path / "m.onnx")
    way = Candidate(CPU, threads=1)
    opening, _ = run_trial(tmp_path / "m.onnx", way, {"x": feed}, seconds=0.0)
    assert opening.outputs[0].dtype == feed.dtype
    assert opening.outputs[0].tolist() == feed.tolist()


def test_feeds_must_be_arrays(path: Path) -> None:
    with pytest.raises(FeedError, match="'x' is a list: trials take numpy arrays"):
        run_trial(path, Candidate(CPU), {"x": [1]})


# -- candidates -----------------------------------------------------------------------------------


def test_thread_counts_below_the_cores_are_tried() -> None:
    ways = tuning.candidates(TuningOptions(providers=[CPU]), cores=6)
    assert [way.threads for way in ways if not way.own_passes] == [0, 1, 2, 4]


def test_the_users_thread_count_is_the_only_one_tried() -> None:
    ways = tuning.candidates(TuningOptions(providers=[CPU], threads=3), cores=6)
    assert {way.threads for way in ways} == {3}


def test_less_than_f32_is_tried_only_where_the_user_allows_it() -> None:
    pytest.importorskip("openvino", reason="openvino, which can compute in less, is not installed")
    for precision in ("f32", "f16"):
        ways = tuning.candidates(TuningOptions(precision=precision), cores=1)
        assert any("precision" in way.provider_options for way in ways) == (precision != "f32")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "f8"}, "precision must be one of f32, bf16, f16, not 'f8'"),
        ({"seconds": 0}, "seconds must be a time above 0, not 0"),
        ({"limit": -1}, "limit must be a time above 0, not -1"),
        ({"providers": ["Nope"]}, "no provider 'Nope'\nthis machine has cpu, "),
        ({"speed": 1}, "auto has no option 'speed'; it has 'seconds', 'precision'"),
    ],
)
def test_options_of_auto_are_checked(path: Path, given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        onward.InferenceSession(path, providers=[("auto", given)])


def test_auto_must_be_the_only_provider(path: Path) -> None:
    with pytest.raises(OptionError, match='"auto" cannot be combined with other providers'):
        onward.InferenceSession(path, providers=["auto", CPU])


def test_auto_and_isolation_exclude_each_other(path: Path) -> None:
    options = onward.SessionOptions(isolated=True)
    with pytest.raises(OptionError, match="auto is not available with isolated"):
        onward.InferenceSession(path, options, providers="auto")


# -- the race -------------------------------------------------------------------------------------


class FakeTrial:
    """A trial whose engine takes what a table says."""

    medians: ClassVar[dict[str, float]]
    outputs: ClassVar[dict[str, Any]]
    opened: ClassVar[list[str]]

    def __init__(self, path: Path, candidate: Candidate, feeds: Any, **_: Any) -> None:
        self.candidate, self.name = candidate, str(candidate)

    def __enter__(self) -> FakeTrial:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def open(self, timeout: float) -> Any:
        self.opened.append(self.name)
        if self.medians[self.name] < 0:
            raise ProviderError("it cannot")
        outputs = self.outputs.get(self.name, [np.ones(3, np.float32)])
        return type("FirstRun", (), {"seconds": 1.0, "outputs": outputs})

    def measure(self, seconds: float, timeout: float) -> CallTimes:
        return CallTimes([self.medians[self.name]] * 3, 100)

    def close(self) -> None: ...


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: Path) -> Any:
    def run(medians: dict[str, float], **outputs: Any) -> TuningResult:
        ways = {
            "CPU": Candidate(CPU),
            "OpenVINO": Candidate("OpenVINOExecutionProvider"),
            "Torch": Candidate("TorchExecutionProvider"),
            "Inductor": Candidate("InductorExecutionProvider"),
        }
        monkeypatch.setattr(tuning, "Trial", FakeTrial)
        monkeypatch.setattr(tuning, "candidates", lambda *_: [ways[n] for n in medians])
        monkeypatch.setattr(FakeTrial, "medians", medians, raising=False)
        monkeypatch.setattr(FakeTrial, "outputs", outputs, raising=False)
        monkeypatch.setattr(FakeTrial, "opened", [], raising=False)
        return tuning.tune(path, FEEDS, TuningOptions(folder=str(tmp_path), fresh=True))

    return run


def names(result: TuningResult) -> list[str]:
    return [str(row.candidate) for row in result.rows]


def test_the_fastest_comes_first(race: Any) -> None:
    assert names(race({"CPU": 3.0, "OpenVINO": 1.0, "Torch": 2.0})) == ["OpenVINO", "Torch", "CPU"]


def test_a_tie_goes_to_the_one_that_was_listed_first(race: Any) -> None:
    assert names(race({"CPU": 1.01, "OpenVINO": 1.0}))[0] == "CPU"


def test_a_candidate_that_fails_is_listed_last_with_its_reason(race: Any) -> None:
    result = race({"CPU": 3.0, "OpenVINO": -1.0})
    assert names(result) == ["CPU", "OpenVINO"]
    assert result.rows[1].error == "it cannot"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.array([1, 1, 1.1], np.float32), "output 0 differs from onnxruntime's"),
        (np.ones(4, np.float32), "output 0 has another shape or type"),
        (np.ones(3, np.float64), "output 0 has another shape or type"),
        (np.array([1, 1, np.nan], np.float32), "output 0 differs from onnxruntime's"),
    ],
)
def test_a_candidate_with_different_outputs_is_excluded(
    race: Any, wrong: Any, message: str
) -> None:
    result = race({"CPU": 3.0, "OpenVINO": 0.1}, OpenVINO=[wrong])
    assert names(result)[0] == "CPU"
    assert result.rows[1].error == message


def test_inductor_is_not_tried_if_torch_is_much_slower(race: Any) -> None:
    race({"CPU": 1.0, "Torch": 10.0, "Inductor": 0.5})
    assert "Inductor" not in FakeTrial.opened
    race({"CPU": 1.0, "Torch": 2.0, "Inductor": 0.5})
    assert "Inductor" in FakeTrial.opened


def test_code_compiled_for_one_shape_is_chosen_only_for_that_shape(race: Any) -> None:
    result = race({"CPU": 1.0, "Torch": 2.0, "Inductor": 0.5})
    assert str(result.best({"x": (2, 4)})) == "Inductor"
    assert str(result.best({"x": (1, 4)})) == "CPU"


def test_onnxruntime_is_the_default_if_all_candidates_fail(race: Any) -> None:
    assert str(race({"OpenVINO": -1.0}).best({"x": (2, 4)})) == "CPU"


# -- results --------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_result_is_cached_by_model_and_shapes(path: Path, tmp_path: Path) -> None:
    options = TuningOptions(**QUICK, folder=str(tmp_path / "kept"))
    first = tuning.tune(path, FEEDS, options)
    shown: list[Any] = []
    again = tuning.tune(path, FEEDS, options, progress=lambda *step: shown.append(step))
    assert again == first
    assert not shown
    tuning.tune(
        path, {"x": np.ones((64, 4), np.float32)}, options, progress=lambda *t: shown.append(t)
    )
    assert shown
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.integration
def test_a_damaged_result_is_measured_again(path: Path, tmp_path: Path) -> None:
    options = TuningOptions(**QUICK, folder=str(tmp_path / "kept"))
    tuning.tune(path, FEEDS, options)
    (file,) = (tmp_path / "kept").iterdir()
    file.write_text("{")
    tuning.tune(path, FEEDS, options)
    assert json.loads(file.read_text())["rows"]


def test_similar_shapes_share_a_result() -> None:
    assert tuning.bucket((1, 3, 7, 8, 9, 0)) == [1, 4, 8, 8, 16, 0]


# -- the session ----------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, tuple[int, ...]]]:
    """The shapes that `auto` asked a result for; the result is onnxruntime with one thread."""
    asked = []

    def tune(source: Any, feeds: Any, options: Any, **_: Any) -> TuningResult:
        shapes = {name: list(feed.shape) for name, feed in feeds.items()}
        asked.append(shapes)
        return TuningResult([Row(Candidate(CPU, threads=1), 1.0)], shapes)

    monkeypatch.setattr(auto_plan, "tune", tune)
    return asked


def test_fixed_shapes_are_measured_when_the_session_opens(measured: Any) -> None:
    session = onward.InferenceSession(doubled(2, 4), providers="auto")
    assert measured == [{"x": [2, 4]}]
    (result,) = session.run(None, FEEDS)
    np.testing.assert_array_equal(result, FEEDS["x"] * 2)
    assert len(measured) == 1
    assert session.get_providers() == [CPU]


def test_dynamic_shapes_are_measured_when_they_are_fed(measured: Any) -> None:
    session = onward.InferenceSession(doubled("batch", 4), providers=["auto"])
    assert measured == []
    assert session.get_inputs()[0].shape == ["batch", 4]
    for batch in (2, 2, 7, 8):
        (result,) = session.run(None, {"x": np.ones((batch, 4), np.float32)})
        assert result.shape == (batch, 4)
    assert measured == [{"x": [2, 4]}, {"x": [7, 4]}]


def test_after_a_few_kinds_of_shapes_the_nearest_result_is_used(measured: Any) -> None:
    session = onward.InferenceSession(doubled("batch", 4), providers="auto")
    for power in range(7):
        session.run(None, {"x": np.ones((1 << power, 4), np.float32)})
    assert len(measured) == auto_plan.MAX_MEASURED


def test_every_way_of_running_works_on_auto(measured: Any) -> None:
    session = onward.InferenceSession(doubled("batch", 4), providers="auto")
    value = onward.OrtValue.ortvalue_from_numpy(FEEDS["x"])
    for run in (session.run_with_ort_values, session.run_with_dlpack):
        (result,) = run(None, {"x": value})
        np.testing.assert_array_equal(result.numpy(), FEEDS["x"] * 2)
    binding = session.io_binding()
    binding.bind_cpu_input("x", FEEDS["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], FEEDS["x"] * 2)


@pytest.mark.integration
def test_auto_measures_for_real(path: Path, tmp_path: Path) -> None:
    given = {**QUICK, "folder": str(tmp_path / "kept")}
    session = onward.InferenceSession(path, providers=[("auto", given)])
    (result,) = session.run(None, FEEDS)
    np.testing.assert_array_equal(result, FEEDS["x"] * 2)
    assert len(list((tmp_path / "kept").iterdir())) == 1
