"""Deadlines: runs end when their time is over, on every engine that can be stopped."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onward
from onward.errors import DeadlineExceeded, OptionError, ProviderError
from onward.providers.options import RunOptions
from onward.workers.deadline import WATCHDOG, Deadline, Watchdog

PROVIDERS = ["CPUExecutionProvider", "TorchExecutionProvider", "ReferenceExecutionProvider"]
X = {"x": np.ones(2, np.float32), "n": np.array(1 << 62, np.int64)}
LIMIT = "the run took longer than its limit of 0.05 s"
HINT = "a single kernel cannot be stopped: use isolated=True for a hard limit"


def loop(step: str = "t = Sin(s)", more: str = "") -> bytes:
    """A model that goes on as long as n says."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (int64 n, float[2] x) => (float[2] y) {{
            c = Constant<value = bool {{1}}>()
            {more}
            y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] t) {{
                co = Identity(ci) {step} }}>
        }}""")
    return model.SerializeToString()


def session(provider: str = "CPUExecutionProvider", **options: Any) -> onward.InferenceSession:
    quiet = onward.SessionOptions(log_severity_level=4, disable_fallback=True, **options)
    return onward.InferenceSession(loop(), quiet, [provider])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_loop_without_end_ends_at_the_deadline(provider: str) -> None:
    endless = session(provider, run_timeout=0.05)
    with pytest.raises(DeadlineExceeded, match=LIMIT) as caught:
        endless.run(None, X)
    assert HINT in str(caught.value) and isinstance(caught.value, TimeoutError)
    [y] = endless.run(None, {**X, "n": np.array(1)})
    np.testing.assert_allclose(y, np.sin(X["x"]), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_loop_around_a_loop_ends_as_well(provider: str) -> None:
    inner = (
        "t = Loop(n, ci, s) <body = d (int64 j, bool di, float[2] u) => (bool do, float[2] v) "
        "{ do = Identity(di) v = Sin(u) }>"
    )
    options = onward.SessionOptions(log_severity_level=4, run_timeout=0.05)
    with pytest.raises(DeadlineExceeded, match=LIMIT):
        onward.InferenceSession(loop(inner), options, [provider]).run(None, X)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_way_to_run_has_the_deadline(provider: str) -> None:
    endless = session(provider, run_timeout=0.05)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in X.items()}
    with pytest.raises(DeadlineExceeded, match=LIMIT):
        endless.run_with_ort_values(None, values)
    binding = endless.io_binding()
    for name, x in X.items():
        binding.bind_cpu_input(name, x)
    binding.bind_output("y")
    with pytest.raises(DeadlineExceeded, match=LIMIT):
        endless.run_with_iobinding(binding)
    answers, came = [], threading.Event()
    endless.run_async(None, X, lambda *answer: (answers.append(answer), came.set()), "mine")
    assert came.wait(30)
    [(results, data, message)] = answers
    assert (results, data) == ([], "mine") and LIMIT in message


def test_the_runs_time_limit_overrides_the_sessions() -> None:
    endless = session(run_timeout=1000)
    with pytest.raises(DeadlineExceeded, match=LIMIT):
        endless.run(None, X, RunOptions(timeout=0.05))


def test_shared_run_options_are_not_terminated() -> None:
    endless, shared = session(), RunOptions(timeout=0.05)
    with pytest.raises(DeadlineExceeded, match=LIMIT):
        endless.run(None, X, shared)
    assert not shared.terminate
    assert len(endless.run(None, {**X, "n": np.array(1)}, shared)) == 1


def test_onnxruntimes_own_run_options_have_the_sessions_deadline() -> None:
    endless, native = session(run_timeout=0.05), onnxruntime.RunOptions()
    with pytest.raises(DeadlineExceeded, match=LIMIT):
        endless.run(None, X, native)
    assert not native.terminate


@pytest.mark.parametrize("provider", PROVIDERS)
def test_terminate_stops_a_run_on_every_engine(provider: str) -> None:
    options = RunOptions()
    alarm = WATCHDOG.after(0.05, lambda: setattr(options, "terminate", True))
    with pytest.raises(ProviderError, match=r"ended by RunOptions\.terminate") as caught:
        session(provider).run(None, X, options)
    assert alarm.fired and not isinstance(caught.value, DeadlineExceeded)


def test_a_wrong_feed_is_still_a_wrong_feed_under_a_deadline() -> None:
    with pytest.raises(onward.errors.FeedError, match="no input 'z'"):
        session(run_timeout=1000).run(None, {**X, "z": X["x"]})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(OptionError, match="timeout must be a number of seconds above 0, or None"):
        session().run(None, X, RunOptions(timeout=seconds))
    with pytest.raises(
        OptionError, match="run_timeout must be a number of seconds above 0, or None"
    ):
        session(run_timeout=seconds).run(None, X)


@pytest.mark.integration
def test_run_options_are_released_after_their_run() -> None:
    quick, options = session(), RunOptions()
    for _ in range(20):
        quick.run(None, {**X, "n": np.array(1)}, options)
    gc.collect()
    assert len(options._followers) == 0


def test_one_thread_watches_every_deadline() -> None:
    before = {thread for thread in threading.enumerate() if thread.name != "onward-watchdog"}
    deadlines = [Deadline(1000, None, False) for _ in range(100)]
    watching = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in watching] == ["onward-watchdog"]
    assert not any(deadline.stop() for deadline in deadlines)


def test_timed_calls_are_made_in_order_of_time() -> None:
    dog, came, done = Watchdog(), [], threading.Event()
    for name, seconds in (("c", 0.03), ("a", 0.01), ("b", 0.02)):
        dog.after(seconds, lambda name=name: came.append(name))
    dog.after(0.04, done.set)
    assert done.wait(30)
    assert came == ["a", "b", "c"]


def test_cancelled_calls_are_not_made_and_are_removed() -> None:
    dog, came, done = Watchdog(), [], threading.Event()
    for _ in range(3000):
        alarm = dog.after(1000, lambda: came.append(1))
        assert not alarm.cancel()
    assert len(dog._calls) <= 1025
    dog.after(0, done.set)
    assert done.wait(30)
    assert not came


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_its_own_watchdog() -> None:
    WATCHDOG.after(0, lambda: None)
    child = os.fork()
    if child == 0:
        came = threading.Event()
        WATCHDOG.after(0.01, came.set)
        os._exit(0 if came.wait(30) else 1)
    assert os.waitpid(child, 0)[1] == 0
