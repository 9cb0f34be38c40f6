"""Models of a server share threads and a memory limit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import MemoryLimitExceeded
from onward.measure.memory import resident_memory
from onward.serving.models.memory_limit import check_memory
from onward.serving.models.repository import Repository
from onward.serving.settings import ServingSettings
from tests.serving.small_models import write_model

MB = 1 << 20


def large_model(megabytes: int) -> bytes:
    """x W, its weights so many MB of random numbers."""
    weights = np.random.default_rng(0).normal(size=(512, megabytes * 512)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", megabytes * 512])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())


@pytest.mark.skipif(not resident_memory.MEASURABLE, reason="the system does not report memory")
def test_a_model_that_does_not_fit_is_refused_and_the_others_serve(tmp_path: Path) -> None:
    write_model(tmp_path / "large/1/model.onnx", large_model(64))
    small = write_model(tmp_path / "small/1/model.onnx")
    onward.InferenceSession(small).close()  # the engine's own memory does not count here

    async def states() -> dict[str, tuple[str, str]]:
        limit = resident_memory.resident() + 32 * MB
        settings = ServingSettings(total_memory_limit=limit)
        loop = asyncio.get_running_loop()
        found = Repository(settings, loop=loop, clock=lambda: 0.0)
        await found.open(tmp_path)
        rows = {row["name"]: (row["state"], row.get("reason", "")) for row in found.table.index()}
        await found.close()
        return rows

    rows = asyncio.run(states())
    assert rows["small"] == ("READY", "")
    state, reason = rows["large"]
    assert state == "UNAVAILABLE"
    assert reason.startswith("model 'large' needs 64.0 MiB for its weights")


@pytest.mark.skipif(not resident_memory.MEASURABLE, reason="the system does not report memory")
def test_external_data_counts(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(large_model(8))
    (tmp_path / "a/1").mkdir(parents=True)
    onnx.save(model, tmp_path / "a/1/model.onnx", save_as_external_data=True, location="weights")
    path = tmp_path / "a/1/model.onnx"
    check_memory("a", path, resident_memory.resident() + 64 * MB)
    with pytest.raises(MemoryLimitExceeded, match=r"needs 8.0 MiB .*\nunload a model, or raise"):
        check_memory("a", path, resident_memory.resident() + 4 * MB)


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list threads")
def test_models_share_threads(tmp_path: Path) -> None:
    """In processes of their own: threads are shared for the life of a process."""
    for name in "abcd":
        write_model(tmp_path / f"four/{name}/1/model.onnx", large_model(16))
    write_model(tmp_path / "one/a/1/model.onnx", large_model(16))
    script = """
import asyncio, os, sys, threading
from onward.serving.server_core import ServerCore
from onward.serving.settings import ServingSettings

async def count(folder, shared):
    core = ServerCore(ServingSettings(shared_threads=shared, watch=False),
                      loop=asyncio.get_running_loop())
    await core.open(folder)
    assert all(row["state"] == "READY" for row in core.repository.table.index()), folder
    threads = len(os.listdir("/proc/self/task")) - threading.active_count()
    await core.close()
    return threads

print(asyncio.run(count(sys.argv[1], int(sys.argv[2]))))
"""

    def threads(folder: str, shared: int) -> int:
        command = [sys.executable, "-c", script, str(tmp_path / folder), str(shared)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(done.stdout.split()[-1])

    four = threads("four", 6)
    assert four - threads("four", 2) == 4
    write_model(tmp_path / "one/quick/1/model.onnx")  # would have one thread of its own
    assert threads("one", 6) > 0
    if (os.cpu_count() or 1) > 1:
        assert four - threads("one", 6) < threads("four", 0) - threads("one", 0)


@pytest.mark.integration
def test_threads_of_a_model_are_refused_where_threads_are_shared(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx")
    script = """
import sys
from pathlib import Path
from onward.errors import OptionError
from onward.providers.ort.shared_threads import share_threads
from onward.serving.models.session_instance import open_session_instances
from onward.serving.settings import ModelSettings

share_threads(2)
share_threads(3)  # a warning, and no error
open_session_instances(Path(sys.argv[1]), ModelSettings(), 1)[0].close()
try:
    open_session_instances(Path(sys.argv[1]), ModelSettings(threads=2), 1)
except OptionError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "cannot have threads of its own" in done.stdout
    assert "already shares 2 threads" in done.stderr
