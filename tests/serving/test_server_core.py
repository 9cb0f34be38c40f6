"""ServerCore: what transports ask, in the JSON form of Triton's HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onward.errors import ModelNotFound, ModelUnavailable, NotSupported, RequestInvalid
from onward.serving.core import Core
from onward.serving.observer import NoObserver
from onward.serving.requests import InferRequest, InferResponse
from onward.serving.server_core import ServerCore
from onward.serving.settings import ServingSettings
from onward.sessions.inference import InferenceSession
from tests.serving.fake_served import FakeServed
from tests.serving.small_models import scale_model, write_model

X = np.ones((1, 4), np.float32)


def in_core(test: Callable[[ServerCore, Path], Coroutine[Any, Any, None]]) -> Any:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            core = ServerCore(
                ServingSettings(watch=False),
                loop=asyncio.get_running_loop(),
                clock=lambda: 0.0,
                factory=FakeServed,
            )
            await test(core, tmp_path)
            await core.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def infer(core: Core, model: str, version: str = "") -> InferResponse | Exception:
    future: asyncio.Future[InferResponse | Exception] = asyncio.get_running_loop().create_future()
    core.submit(InferRequest(model, {"x": X}, version), future.set_result)
    return await asyncio.wait_for(future, 60)


@in_core
async def test_requests_that_no_model_gets_are_counted(core: ServerCore, tmp_path: Path) -> None:
    await core.open(write_model(tmp_path / "m.onnx"))
    counted: list[tuple[str, ...]] = []

    class Counts(NoObserver):
        def on_request(self, model: str, version: str, request_id: str, *given: Any) -> None:
            counted.append((model, version, request_id, str(given[1])))

    core._observer = Counts()
    core.count_refused("m", "", RequestInvalid("no JSON"), "a")
    for name, version in (("m", "7"), ("invented", "1")):
        assert isinstance(await infer(core, name, version), ModelNotFound)
    await core.drain(0)
    assert isinstance(await infer(core, "m"), ModelUnavailable)
    assert counted == [
        ("m", "1", "a", "no JSON"),
        ("m", "", "", "Request for unknown model: 'm' version 7 is not found"),
        ("", "", "", "Request for unknown model: 'invented' is not found"),
        ("m", "1", "", "the server is shutting down"),
    ]


@in_core
async def test_a_server_is_ready_when_models_are_loaded(core: ServerCore, tmp_path: Path) -> None:
    assert not core.is_ready and not core.is_model_ready("m")
    await core.open(write_model(tmp_path / "m.onnx"))
    assert core.is_ready and core.is_model_ready("m") and core.is_model_ready("m", "1")
    assert not core.is_model_ready("m", "2")
    served: Any = core.repository.table.find("m")
    served.is_nearly_full = True
    assert not core.is_ready and core.is_model_ready("m")
    served.is_nearly_full = False
    served.is_stuck = True
    assert not core.is_ready and not core.is_model_ready("m")
    assert core.index() == [
        {"name": "m", "version": "1", "state": "UNAVAILABLE",
         "reason": "stuck: the runs of all of its instances do not end"},
    ]  # fmt: skip
    served.is_stuck = False
    assert isinstance(await infer(core, "m"), InferResponse)
    await core.drain(1.0)
    assert not core.is_ready
    error = await infer(core, "m")
    assert isinstance(error, ModelUnavailable) and error.retry_after == 1.0


@in_core
async def test_metadata(core: ServerCore, tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")
    write_model(tmp_path / "a/2/model.onnx")
    (tmp_path / "a/config.pbtxt").write_text("version_policy { all { } }")
    await core.open(str(tmp_path))
    assert core.server_metadata()["name"] == "onward"
    assert "binary_tensor_data" in core.server_metadata()["extensions"]
    assert core.model_metadata("a", "1") == {
        "name": "a",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }
    inputs, outputs = core.signature("a")
    assert [spec.name for spec in (*inputs, *outputs)] == ["x", "y"]
    with pytest.raises(ModelNotFound, match="Request for unknown model: 'b' is not found"):
        core.model_metadata("b")
    with pytest.raises(ModelNotFound, match="'a' version 9 is not found"):
        core.signature("a", "9")


@in_core
async def test_configuration_labels_and_statistics(core: ServerCore, tmp_path: Path) -> None:
    write_model(tmp_path / "a/1/model.onnx")
    (tmp_path / "a/config.pbtxt").write_text(
        'max_batch_size: 4 output { name: "y" dims: [4] label_filename: "l.txt" }'
    )
    (tmp_path / "a/l.txt").write_text("cat\ndog\n")
    await core.open(tmp_path)
    await core.add("f", lambda x: 2 * x)
    served: Any = core.repository.table.find("a")
    served.batching = SimpleNamespace(max_size=4, axes={"x": 0, "y": 0})
    config = core.model_config("a")
    assert config["max_batch_size"] == 4 and config["output"][0]["dims"] == [4]
    assert config["default_model_filename"] == "model.onnx"
    assert core.labels("a", "", "y") == ["cat", "dog"] and core.labels("a", "1", "z") == []
    assert core.model_config("f")["backend"] == "python"
    await infer(core, "a")
    stats = core.statistics()["model_stats"]
    assert [(row["name"], row["version"]) for row in stats] == [("a", "1"), ("f", "1")]
    assert core.statistics("a")["model_stats"][0]["inference_count"] == 1
    with pytest.raises(ModelNotFound):
        core.statistics("nothing")
    assert core.index()[0] == {"name": "a", "version": "1", "state": "READY"}


@in_core
async def test_clients_load_and_unload(core: ServerCore, tmp_path: Path) -> None:
    await core.open(tmp_path)  # empty
    await core.load("m", {"file:1/model.onnx": scale_model(3)})
    found = await infer(core, "m")
    assert isinstance(found, InferResponse) and found.outputs["y"][0, 0] == 3
    await core.unload("m")
    assert not core.is_model_ready("m")
    core.settings = ServingSettings(allow_model_control=False)
    for call in (core.load("m", {}), core.unload("m")):
        with pytest.raises(NotSupported, match="allow_model_control is off"):
            await call


@in_core
async def test_a_session_of_the_user_is_served(core: ServerCore, tmp_path: Path) -> None:
    session = InferenceSession(scale_model(4))
    await core.add("m", session)
    assert core.is_ready
    found = await infer(core, "m")
    assert isinstance(found, InferResponse) and found.outputs["y"][0, 0] == 4
    await core.unload("m")
    assert session.run(None, {"x": X})
    session.close()
