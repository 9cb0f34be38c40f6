"""Isolated sessions: the same answers from a process of its own, which may die."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from safetensors.numpy import save_file

import onward
from onward.errors import (
    DeadlineExceeded,
    FeedError,
    InvalidModel,
    MemoryLimitExceeded,
    OptionError,
    ProviderError,
    WorkerDied,
)
from onward.providers.options import RunOptions
from onward.sessions.isolated_plan import IsolatedPlan, _warn
from onward.workers.deadline import WATCHDOG
from tests.models import mlp, serialized

CPU = ["CPUExecutionProvider"]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds the limit")
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    sums (float[batch, 2] x, int64[k] shape) => (float[batch, 2] y, float t) {
        y = Add(x, x)
        big = ConstantOfShape(shape)
        m = MatMul(big, big)
        t = ReduceSum<keepdims = 0>(m)
    }""").SerializeToString()
SMALL = {"x": np.ones((1, 2), np.float32), "shape": np.array([2, 2])}


def opened(model: Any = MODEL, providers: Any = CPU, **options: Any) -> onward.InferenceSession:
    settings = onward.SessionOptions(isolated=True, log_severity_level=4, **options)
    return onward.InferenceSession(model, settings, providers)


def process_of(session: onward.InferenceSession) -> int:
    assert isinstance(session._plan, IsolatedPlan) and session._plan._worker is not None
    return session._plan._worker.pid


@pytest.fixture(scope="module")
def session() -> onward.InferenceSession:
    """One for the tests that leave it alive."""
    return opened()


def test_results_match_a_session_in_this_process(session: onward.InferenceSession) -> None:
    here = onward.InferenceSession(MODEL, None, CPU)
    for got, wanted in zip(session.run(None, SMALL), here.run(None, SMALL), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert [(a.name, a.type, a.shape) for a in session.get_inputs()] == [
        (a.name, a.type, a.shape) for a in here.get_inputs()
    ]
    assert [a.name for a in session.get_outputs()] == ["y", "t"]
    assert session.get_overridable_initializers() == []
    assert session.get_providers() == CPU
    assert set(session.get_provider_options()) == set(CPU)
    assert session.get_modelmeta().graph_name == "sums"
    assert process_of(session) != os.getpid()


def test_only_named_outputs_are_returned(session: onward.InferenceSession) -> None:
    [y] = session.run(["y"], SMALL)
    assert y.tolist() == [[2, 2]]
    y[...] = 0  # it is the caller's own


def test_plain_numbers_are_feeds_too(session: onward.InferenceSession) -> None:
    assert session.run(["t"], {"x": SMALL["x"], "shape": [2, 2]})[0] == 0


def test_every_run_method_uses_the_process(session: onward.InferenceSession) -> None:
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in SMALL.items()}
    assert session.run_with_ort_values(["y"], values)[0].numpy().tolist() == [[2, 2]]
    binding = session.io_binding()
    for name, x in SMALL.items():
        binding.bind_cpu_input(name, x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [[2, 2]]
    answers, came = [], threading.Event()
    session.run_async(["y"], SMALL, lambda *answer: (answers.append(answer), came.set()), 7)
    assert came.wait(30)
    [(results, data, message)] = answers
    assert results[0].tolist() == [[2, 2]] and (data, message) == (7, "")


def test_errors_of_the_process_keep_their_class(session: onward.InferenceSession) -> None:
    with pytest.raises(FeedError, match="no input 'z'; the model takes 'x', 'shape'"):
        session.run(None, {"z": SMALL["x"]})
    with pytest.raises(KeyError, match="no output 'q'"):
        session.run(["q"], SMALL)
    with pytest.raises(ProviderError, match="while running MatMul node"):
        session.run(None, {**SMALL, "shape": np.array([2, 3])})
    with pytest.raises(TypeError, match="a feed must be a tensor or numbers, not object"):
        session.run(None, {"x": object()})


def test_many_threads_may_share_the_process(session: onward.InferenceSession) -> None:
    got: dict[int, Any] = {}

    def ask(n: int) -> None:
        got[n] = session.run(["y"], {**SMALL, "x": np.full((1, 2), n, np.float32)})[0]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(got[n].tolist() == [[2 * n, 2 * n]] for n in range(16))


def test_a_broken_model_is_the_same_error() -> None:
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        opened(b"\x99nonsense")
    with pytest.raises(FileNotFoundError, match="no model at"):
        opened("nowhere.onnx")
    with pytest.raises(TypeError, match=r"a model must be a path, bytes, an onnx\.ModelProto"):
        opened(3)


@pytest.mark.integration
def test_every_kind_of_source_opens(tmp_path: Path) -> None:
    model = mlp()
    x = {"x": np.ones((1, 4), np.float32)}
    wanted = onward.InferenceSession(serialized(model), None, CPU).run(None, x)[0]
    path = tmp_path / "model.onnx"
    ir.save(model, path, external_data="weights.bin", size_threshold_bytes=0)
    for source in (path, str(path), ir.to_proto(model), model, ir.load(path)):
        np.testing.assert_allclose(opened(source).run(None, x)[0], wanted)
    weights = tmp_path / "other.safetensors"
    save_file({"w": np.zeros((4, 2), np.float32)}, weights)
    options = onward.SessionOptions(isolated=True)
    swapped = onward.InferenceSession(serialized(model), options, CPU, weights=weights)
    assert swapped.run(None, x)[0].tolist() == [[0.5, 0.5]]


def test_types_of_ml_dtypes_pass() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (bfloat16[2] b) => (bfloat16[2] c) { c = Identity(b) }""")
    [c] = opened(model).run(None, {"b": np.array([1, 2], ml_dtypes.bfloat16)})
    assert c.dtype == ml_dtypes.bfloat16 and c.tolist() == [1, 2]


def test_text_sequences_and_optionals_pass() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (string[1] s, seq(float[n]) q, optional(float[2]) o)
            => (string[1] t, seq(float[n]) r, bool h) {
            zero = Constant<value_int = 0>() t = StringConcat(s, s) x = SequenceAt(q, zero)
            r = SequenceInsert(q, x) h = OptionalHasElement(o)
        }""")
    feeds = {
        "s": np.array(["ä"], object),
        "q": [np.ones(2, np.float32), np.zeros(3, np.float32)],
        "o": None,
    }
    t, r, h = opened(model, None).run(None, feeds)
    assert t.tolist() == ["ää"] and [len(x) for x in r] == [2, 3, 2] and not h


def test_warnings_of_the_process_are_raised() -> None:
    with pytest.warns(DeprecationWarning, match="old"):
        _warn([("DeprecationWarning", "old")])
    with pytest.warns(UserWarning, match="not a warning"):
        _warn([("open", "not a warning")])


@pytest.mark.sampled()
@on_posix
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_named_and_the_next_run_starts_a_new_process(number: signal.Signals) -> None:
    session = opened()
    huge = {**SMALL, "shape": np.array([6000, 6000])}
    first = process_of(session)
    alarm = WATCHDOG.after(0.3, lambda: os.kill(first, number))
    with pytest.raises(WorkerDied, match=f"died of {number.name} while it ran the model"):
        session.run(None, huge)
    assert alarm.fired
    assert session.run(["y"], SMALL)[0].tolist() == [[2, 2]]
    assert process_of(session) != first


@on_posix
def test_a_crash_between_two_runs_is_recovered() -> None:
    session = opened()
    first = process_of(session)
    os.kill(first, signal.SIGKILL)
    assert isinstance(session._plan, IsolatedPlan) and session._plan._worker is not None
    session._plan._worker._process.wait()
    assert session.run(["y"], SMALL)[0].tolist() == [[2, 2]]


@pytest.mark.integration
def test_a_kernel_that_cannot_be_stopped_dies_with_its_process() -> None:
    session = opened(run_timeout=0.2)
    huge = {**SMALL, "shape": np.array([6000, 6000])}
    with pytest.raises(DeadlineExceeded, match=r"longer than its limit of 0\.2 s") as caught:
        session.run(None, huge)
    assert "a single kernel" not in str(caught.value)
    assert session.run(["y"], SMALL)[0].tolist() == [[2, 2]]


def test_terminate_reaches_the_process() -> None:
    session, options = opened(), RunOptions()
    WATCHDOG.after(0.2, lambda: setattr(options, "terminate", True))
    with pytest.raises(ProviderError, match=r"ended by RunOptions\.terminate") as caught:
        session.run(None, {**SMALL, "shape": np.array([6000, 6000])}, options)
    assert not isinstance(caught.value, (DeadlineExceeded, WorkerDied))


def test_a_queued_call_keeps_its_deadline() -> None:
    session = opened()
    stop, answers, came = RunOptions(), [], threading.Event()
    huge = {**SMALL, "shape": np.array([6000, 6000])}
    session.run_async(None, huge, lambda *a: (answers.append(a), came.set()), None, stop)
    while not session._plan._turns.locked():  # type: ignore[union-attr]
        pass
    with pytest.raises(DeadlineExceeded):
        session.run(None, SMALL, RunOptions(timeout=0.1))
    stop.terminate = True
    assert came.wait(30)
    assert "ended by RunOptions.terminate" in answers[0][2]


def test_opening_has_a_deadline_too() -> None:
    with pytest.raises(DeadlineExceeded, match=r"opening the model took longer .* of 0\.001 s"):
        opened(open_timeout=0.001)
    with pytest.raises(OptionError, match="open_timeout must be a number of seconds above 0"):
        opened(open_timeout=0)


@pytest.mark.sampled()
@on_linux
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_the_memory_limit_holds(provider: str) -> None:
    session = opened(providers=[provider], memory_limit=100 << 20, disable_fallback=True)
    with pytest.raises(MemoryLimitExceeded, match="more than its memory limit of 104,857,600"):
        session.run(None, {**SMALL, "shape": np.array([1 << 14, 1 << 14])})
    assert session.run(["y"], SMALL)[0].tolist() == [[2, 2]]


def test_a_limit_that_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="memory_limit must be a number of bytes above 0, not 0"):
        opened(memory_limit=0)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OptionError, match="cannot hold it on darwin, only on Linux"):
        opened(memory_limit=1 << 30)


@on_linux
def test_the_process_has_its_limits(session: onward.InferenceSession) -> None:
    status = Path(f"/proc/{process_of(session)}/status").read_text()
    limits = Path(f"/proc/{process_of(session)}/limits").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Max core file size        0" in limits
    assert "Max file size             0" in limits


@pytest.mark.integration
@on_linux
def test_the_process_ends_with_its_session_and_with_its_parent() -> None:
    session = opened()
    child = process_of(session)
    del session
    gc.collect()
    assert not Path(f"/proc/{child}").exists()
    program = (
        "import os, sys, onward\n"
        "options = onward.SessionOptions(isolated=True)\n"
        "s = onward.InferenceSession(sys.stdin.buffer.read(), options, ['CPUExecutionProvider'])\n"
        "print(s._plan._worker.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=MODEL, capture_output=True)
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    while stat.exists() and stat.read_text().split()[2] not in "ZX":  # the kernel is on its way
        pass


def test_profiling_and_the_cache_work_when_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = opened(enable_profiling=True, result_cache_bytes=1 << 20)
    for _ in range(2):
        session.run(["y"], SMALL)
    assert session.cache is not None and session.cache.hits == 1
    assert session.get_profiling_start_time_ns() > 0
    assert Path(session.end_profiling()).is_file()


def test_a_model_with_random_operators_is_not_cached() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }""")
    with pytest.raises(OptionError, match=r"RandomNormalLike .* draws random numbers"):
        opened(model, result_cache_bytes=1000)


@pytest.mark.integration
def test_set_providers_starts_another_process(session: onward.InferenceSession) -> None:
    moved = opened()
    first = process_of(moved)
    moved.set_providers(["ReferenceExecutionProvider"])
    assert moved.get_providers() == ["ReferenceExecutionProvider"]
    assert moved.run(["y"], SMALL)[0].tolist() == [[2, 2]] and process_of(moved) != first


def test_a_malformed_reply_is_refused(session: onward.InferenceSession) -> None:
    lying = opened()
    plan = lying._plan
    assert isinstance(plan, IsolatedPlan) and plan._worker is not None
    shape = [1 << 40]
    false = {"results": [{"kind": "tensor", "dtype": "float32", "shape": shape}], "buffers": []}
    plan._worker.ask = lambda *_, **__: (false, iter([np.zeros(4, np.uint8)]))  # type: ignore[method-assign]
    with pytest.raises(WorkerDied, match="a reply that is malformed or too large"):
        lying.run(None, SMALL)


@pytest.mark.parametrize("ask", ["memory_plan", "allocate_outputs"])
def test_an_isolated_model_is_not_opened_in_this_process(ask: str) -> None:
    session = onward.InferenceSession(mlp(), onward.SessionOptions(isolated=True))
    with pytest.raises(OptionError, match=f"{ask} is not available with isolated: it would load"):
        getattr(session, ask)()
