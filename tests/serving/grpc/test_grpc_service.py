"""Calls of the inference service over a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import numpy as np
import pytest

from onward.errors import (
    AccessDenied,
    FeedError,
    NodeFailed,
    QuotaExceeded,
    RequestExpired,
    ServerOverloaded,
)
from onward.serving.settings import ServingSettings
from tests.serving.grpc_client import Client, infer_message, run, serving
from tests.serving.numpy_core import NumpyCore

X = np.arange(16, dtype=np.int32)
SIMPLE = {name: ("INT32", [1, 16], X.tobytes()) for name in ("INPUT0", "INPUT1")}


async def refused(client: Client, method: str, request: Any = None, **options: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call(method, request, **options)
    return caught.value


def test_a_request_is_answered() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            answer = await client.call("ModelInfer", infer_message("simple", SIMPLE, id="7"))
            assert (answer.model_name, answer.model_version, answer.id) == ("simple", "1", "7")
            assert [each.name for each in answer.outputs] == ["OUTPUT0", "OUTPUT1"]
            assert answer.raw_output_contents[0] == (X + X).tobytes()
            message = infer_message("simple", SIMPLE)
            message.outputs.add(name="OUTPUT1")
            answer = await client.call("ModelInfer", message)
            assert list(answer.raw_output_contents) == [bytes(64)]

    run(main())


def test_elements_are_answered_with_elements_and_bytes() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            message = infer_message("identity_int8", {})
            tensor = message.inputs.add(name="x", datatype="INT8", shape=[1, 2])
            tensor.contents.int_contents.extend([1, -2])
            answer = await client.call("ModelInfer", message)
            assert list(answer.outputs[0].contents.int_contents) == [1, -2]
            assert list(answer.raw_output_contents) == [b"\x01\xfe"]

    run(main())


def test_errors_have_their_code_and_text() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            error = await refused(client, "ModelInfer", infer_message("none", {}))
            assert error.code() == grpc.StatusCode.NOT_FOUND
            assert error.details() == "Request for unknown model: 'none' is not found"
            error = await refused(client, "ModelInfer", infer_message("simple", {}))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            for raised, code in [
                (FeedError("bad feed"), grpc.StatusCode.INVALID_ARGUMENT),
                (NodeFailed("bad node", "Det"), grpc.StatusCode.INTERNAL),
                (RequestExpired("too late"), grpc.StatusCode.DEADLINE_EXCEEDED),
            ]:
                core.error = raised
                error = await refused(client, "ModelInfer", infer_message("simple", SIMPLE))
                assert (error.code(), error.details()) == (code, str(raised))

    run(main())


def test_an_unexpected_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        core = NumpyCore()
        core.error = ZeroDivisionError("secret")
        async with serving(core) as client:
            error = await refused(client, "ModelInfer", infer_message("simple", SIMPLE))
            assert error.code() == grpc.StatusCode.INTERNAL
            assert error.details() == "internal error: ZeroDivisionError"

    run(main())
    assert "secret" in caplog.text


def test_an_overloaded_server_says_when_to_try_again() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.error = ServerOverloaded("too many requests wait", retry_after=0.25)
        async with serving(core) as client:
            error = await refused(client, "ModelInfer", infer_message("simple", SIMPLE))
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert error.trailing_metadata()["retry-after"] == "1"
            assert error.trailing_metadata()["grpc-retry-pushback-ms"] == "250"

    run(main())


def test_calls_that_no_model_gets_are_counted() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            wrong = infer_message("simple", {"INPUT0": ("INT32", [1, 16], b"1")}, model_version="1")
            await refused(client, "ModelInfer", wrong)
            await refused(client, "ModelInfer", infer_message("none", {}))  # the core counts it
        [(model, version, text)] = core.refused
        assert (model, version) == ("simple", "1") and "got 1 bytes" in text

    run(main())


async def until_held(core: NumpyCore) -> None:
    while not core.held:
        await asyncio.sleep(0)


async def until_cancelled(core: NumpyCore, count: int) -> None:
    while core.cancelled < count:
        await asyncio.sleep(0)


def test_cancelling_a_call_cancels_its_request() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.held = []
        async with serving(core) as client:
            call = client.start("ModelInfer", infer_message("simple", SIMPLE))
            await until_held(core)
            call.cancel()
            await until_cancelled(core, 1)
            core.held[0]()  # a late answer is ignored

    run(main())


def test_a_clients_deadline_cancels_its_request() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.held = []
        async with serving(core) as client:
            message = infer_message("simple", SIMPLE)
            error = await refused(client, "ModelInfer", message, timeout=0.2)
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if core.requests:  # on a slow machine, the deadline may pass before it arrives
                await until_cancelled(core, 1)

    run(main())


class Keys:
    """Key "a" may call, "root" may do all, "b" has no quota left."""

    def check(self, key: str | None, admin: bool, client: str) -> None:
        if key == "b":
            raise QuotaExceeded("too many requests", retry_after=3)
        if key not in ("a", "root") or (admin and key != "root"):
            raise AccessDenied(f"the key {key} may not do this")


def test_a_request_has_the_trace_of_its_client() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            message, metadata = infer_message("simple", SIMPLE), (("traceparent", "00-a-b-01"),)
            await client.call("ModelInfer", message, metadata=metadata)
            stream = client.stream(metadata=metadata)
            await stream.write(message)
            await stream.read()
            await stream.done_writing()
        assert [each.traceparent for each in core.requests] == ["00-a-b-01"] * 2

    run(main())


def test_keys_are_checked() -> None:
    async def main() -> None:
        async with serving(NumpyCore(), access=Keys()) as client:
            assert (await client.call("ServerLive")).live
            assert (await client.call("ServerReady")).ready
            for metadata in [(("x-api-key", "a"),), (("authorization", "Bearer a"),)]:
                message = infer_message("simple", SIMPLE)
                assert (await client.call("ModelInfer", message, metadata=metadata)).outputs
            error = await refused(client, "ModelInfer", infer_message("simple", SIMPLE))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            error = await refused(client, "ModelMetadata", metadata=(("authorization", "Basic a"),))
            assert "Bearer KEY" in error.details()
            error = await refused(client, "ModelConfig", metadata=(("x-api-key", "b"),))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            load = {"model_name": "simple"}
            error = await refused(
                client, "RepositoryModelLoad", metadata=(("x-api-key", "a"),), **load
            )
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            await client.call("RepositoryModelLoad", metadata=(("x-api-key", "root"),), **load)
            await client.call("LogSettings", metadata=(("x-api-key", "a"),))
            change = {"settings": {"log_info": {"bool_param": True}}}
            error = await refused(client, "LogSettings", metadata=(("x-api-key", "a"),), **change)
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED

    run(main())


def test_metadata_config_and_statistics() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            server = await client.call("ServerMetadata")
            assert (server.name, server.extensions[0]) == ("onward", "binary_tensor_data")
            model = await client.call("ModelMetadata", name="identity_bf16")
            assert list(model.versions) == ["1"]
            assert (model.inputs[0].datatype, list(model.inputs[0].shape)) == ("BF16", [-1, -1])
            config = (await client.call("ModelConfig", name="identity_bytes")).config
            assert (config.max_batch_size, config.input[0].data_type) == (8, 13)
            assert config.version_policy.latest.num_versions == 1
            await client.call("ModelInfer", infer_message("simple", SIMPLE))
            found = (await client.call("ModelStatistics", name="simple")).model_stats[0]
            assert (found.inference_count, found.inference_stats.success.ns) == (1, 7)
            assert len((await client.call("ModelStatistics")).model_stats) > 10
            for method in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
                error = await refused(client, method, name="none")
                assert error.code() == grpc.StatusCode.NOT_FOUND

    run(main())


def test_models_are_loaded_and_unloaded() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            assert (await client.call("ModelReady", name="simple")).ready
            assert not (await client.call("ModelReady", name="none")).ready
            await client.call(
                "RepositoryModelUnload",
                model_name="simple",
                parameters={"unload_dependents": {"bool_param": False}},
            )
            assert not (await client.call("ModelReady", name="simple")).ready
            names = [
                each.name for each in (await client.call("RepositoryIndex", ready=True)).models
            ]
            assert "simple" not in names
            models = {e.name: e.state for e in (await client.call("RepositoryIndex")).models}
            assert models["simple"] == "UNAVAILABLE"
            config = json.dumps({"max_batch_size": 2})
            answer = await client.call(
                "RepositoryModelLoad",
                model_name="simple",
                parameters={
                    "config": {"string_param": config},
                    "file:1/model.onnx": {"bytes_param": b"\xff"},
                },
            )
            assert answer.isLoaded
            assert core.loaded == [("simple", {"config": config, "file:1/model.onnx": b"\xff"})]
            await client.call("RepositoryModelLoad", repository_name="classifier")  # as KServe
            assert core.loaded[-1] == ("classifier", {})
            error = await refused(client, "RepositoryModelLoad")
            assert error.details() == "the request does not name a model"

    run(main())


@pytest.mark.parametrize("settings", [{"allow_model_control": False}, {"admin_port": 1}])
def test_models_are_loaded_where_it_is_allowed(settings: dict[str, Any]) -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core, ServingSettings(grpc_port=0, **settings)) as client:
            for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
                error = await refused(client, method, model_name="simple")
                assert error.code() == grpc.StatusCode.UNIMPLEMENTED
                assert "explicit model load / unload is not allowed" in error.details()
        assert core.loaded == []

    run(main())


def test_log_settings_are_changed_on_the_admin_port_if_there_is_one() -> None:
    async def main() -> None:
        async with serving(NumpyCore(), ServingSettings(grpc_port=0, admin_port=1)) as client:
            assert await client.call("LogSettings")
            change = {"log_info": {"bool_param": False}}
            error = await refused(client, "LogSettings", settings=change)
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "use the HTTP route of the admin port, 1" in error.details()

    run(main())


def test_shared_memory_is_registered(tmp_path: Any) -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            region = {"name": "r", "key": "/onward-no-such-memory", "byte_size": 8}
            error = await refused(client, "SystemSharedMemoryRegister", **region)
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "Unable to open shared memory region: 'r'" in error.details()
            assert not (await client.call("SystemSharedMemoryStatus")).regions
            await client.call("SystemSharedMemoryUnregister")
            await client.call("CudaSharedMemoryUnregister")
            assert not (await client.call("CudaSharedMemoryStatus")).regions
            error = await refused(client, "CudaSharedMemoryRegister", name="r")
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "register system shared memory instead" in error.details()

    run(main())


def test_trace_and_log_settings() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            found = (await client.call("TraceSetting")).settings
            assert list(found["trace_level"].value) == ["OFF"]
            reset = {"trace_level": {}, "trace_rate": {"value": ["1000"]}}
            assert await client.call("TraceSetting", settings=reset)
            change = {"trace_level": {"value": ["TIMESTAMPS"]}}
            error = await refused(client, "TraceSetting", settings=change)
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            log = (await client.call("LogSettings")).settings
            assert log["log_error"].bool_param
            assert log["log_format"].string_param == "default"
            same = {"log_error": {}, "log_info": {}}
            assert await client.call("LogSettings", settings=same)
            error = await refused(
                client, "LogSettings", settings={"log_file": {"string_param": "x"}}
            )
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT

    run(main())
