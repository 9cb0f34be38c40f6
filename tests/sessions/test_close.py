"""close(): what a session holds is released, and using it afterwards is one clear error."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import SessionClosed
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.sessions.isolated_plan import IsolatedPlan
from tests.models import mlp, sandwich, serialized
from tests.sessions.training.small import batches
from tests.sessions.training.small import mlp as small_mlp

CPU = "CPUExecutionProvider"
FEEDS = {"x": np.ones((1, 4), np.float32)}
MESSAGE = r"this session has been closed\nopen the model again"


@pytest.mark.parametrize("make", [mlp, sandwich])
def test_every_use_after_close_is_one_error(make: Any) -> None:
    options = onward.SessionOptions(result_cache_bytes=1000)
    with onward.InferenceSession(serialized(make()), options) as session:
        session.run(None, FEEDS)
    session.close()
    uses: list[Any] = [
        lambda: session.run(None, FEEDS),
        lambda: session.run(None, FEEDS, onward.RunOptions(timeout=1)),
        lambda: session.run_async(None, FEEDS, print, None),
        lambda: session.run_with_ort_values(None, {}),
        lambda: session.run_with_dlpack(None, FEEDS),
        lambda: session.run_into({"y": np.zeros((1, 2), np.float32)}, FEEDS),
        session.io_binding,
        session.get_inputs,
        session.get_providers,
        session.memory_plan,
        session.allocate_outputs,
        session.set_providers,
        session.end_profiling,
    ]
    for use in uses:
        with pytest.raises(SessionClosed, match=MESSAGE):
            use()


def test_close_releases_the_engines_session() -> None:
    session = onward.InferenceSession(serialized(mlp()), None, [CPU])
    native = weakref.ref(session._plan.native)
    session.close()
    assert native() is None


def test_close_ends_the_threads_of_a_divided_model() -> None:
    session = onward.InferenceSession(sandwich())
    done = threading.Event()
    session.run_async(None, FEEDS, lambda *_: done.set(), None)
    assert done.wait(30)
    [thread] = session._plan._background._threads  # type: ignore[attr-defined]
    session.close()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_close_ends_the_process_of_an_isolated_session() -> None:
    options = onward.SessionOptions(isolated=True)
    with onward.InferenceSession(serialized(mlp()), options, [CPU]) as session:
        plan = session._plan
        assert isinstance(plan, IsolatedPlan) and plan._worker is not None
        child = plan._worker.pid
        session.run(None, FEEDS)
    assert not Path(f"/proc/{child}").exists()
    with pytest.raises(SessionClosed, match=MESSAGE):
        session.run(None, FEEDS)


@pytest.mark.integration
def test_auto_closes_all_its_plans(tmp_path: Path) -> None:
    tuning = {"seconds": 0.01, "providers": [CPU], "folder": str(tmp_path)}
    session = onward.InferenceSession(serialized(mlp()), providers=[("auto", tuning)])
    session.run(None, FEEDS)
    session.close()
    with pytest.raises(SessionClosed, match=MESSAGE):
        session.run(None, FEEDS)


@pytest.mark.sampled()
@pytest.mark.parametrize("provider", [CPU, "TorchExecutionProvider", "ReferenceExecutionProvider"])
def test_a_closed_training_session_releases_its_engine(provider: str, tmp_path: Path) -> None:
    batch = batches(1)[0]
    with onward.TrainingSession(
        small_mlp(), CrossEntropy(), SGD(lr=0.1), providers=[provider]
    ) as session:
        session.step(batch)
        engine = weakref.ref(session._engine)
    session.close()
    gc.collect()
    assert engine() is None
    uses: list[Any] = [
        lambda: session.step(batch),
        lambda: session.evaluate(batch),
        lambda: session.parameters,
        lambda: session.save(tmp_path / "c"),
        lambda: session.export(tmp_path / "m.onnx"),
        session.get_gradients,
    ]
    for use in uses:
        with pytest.raises(SessionClosed, match=MESSAGE):
            use()
    assert session.steps == 1
