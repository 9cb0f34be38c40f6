"""Both clients over gRPC, against a server of the test's own: routes, tensors, errors, retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from onward.errors import ModelNotFound, OptionError, RequestExpired, ServerUnreachable

grpc = pytest.importorskip("grpc")
messages = pytest.importorskip("onward.serving.grpc.grpc_messages")

Connect = Callable[..., Any]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class TinyGrpcServer:
    """Doubles the input "x"; `script` has the errors (code, text, metadata) that come before."""

    def __init__(self) -> None:
        self.script: list[tuple[Any, str, tuple[Any, ...]]] = []
        self.seen: list[tuple[str, Any, dict[str, Any]]] = []
        self._pool = ThreadPoolExecutor(2)
        self._server = grpc.server(self._pool)
        methods = messages.service_methods(messages.INFERENCE)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                lambda request, context, name=name: self._answer(name, request, context),
                request_deserializer=messages.input_class(about).FromString,
                response_serializer=messages.output_class(about).SerializeToString,
            )
            for name, about in methods.items()
            if name != "ModelStreamInfer"
        }
        generic = grpc.method_handlers_generic_handler(messages.INFERENCE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self.url = f"grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait(60)
        self._pool.shutdown()

    def _answer(self, name: str, request: Any, context: Any) -> Any:
        self.seen.append((name, request, dict(context.invocation_metadata())))
        if self.script:
            code, text, metadata = self.script.pop(0)
            context.set_trailing_metadata(metadata)
            context.abort(code, text)
        reply = messages.message_class(f"inference.{name}Response")()
        if name == "ModelInfer":
            data = 2 * np.frombuffer(request.raw_input_contents[0], "<f4")
            reply.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
            if request.id == "listed":
                reply.outputs[0].contents.fp32_contents.extend(data.tolist())
            else:
                reply.raw_output_contents.append(data.tobytes())
        elif name == "ModelMetadata":
            reply.inputs.add(name="x", datatype="FP32", shape=[-1, 3])
        elif name in ("ServerReady", "ModelReady"):
            reply.ready = getattr(request, "name", "") != "none"
        elif name == "RepositoryIndex":
            reply.models.add(name="double", state="READY")
        elif name == "ModelConfig":
            reply.config.name, reply.config.max_batch_size = "double", 8
        return reply


@pytest.fixture
def grpc_server() -> Iterator[TinyGrpcServer]:
    made = TinyGrpcServer()
    yield made
    made.stop()


def test_a_model_is_run(grpc_server: TinyGrpcServer, connect: Connect) -> None:
    client = connect(grpc_server.url, api_key="secret")
    found = client.infer(
        "double", {"x": X}, ["y"], version="2", timeout=30, priority=1, request_id="r",
        sequence_id=4, sequence_start=True,
    )  # fmt: skip
    np.testing.assert_array_equal(found["y"], 2 * X)
    name, request, metadata = grpc_server.seen[0]
    assert (name, request.model_name, request.model_version) == ("ModelInfer", "double", "2")
    assert request.id == "r" and [each.name for each in request.outputs] == ["y"]
    assert metadata["authorization"] == "Bearer secret"
    sent = messages.parameter_values(request.parameters)
    assert 0 < sent.pop("timeout") <= 30_000_000
    assert sent == {
        "priority": 1,
        "sequence_id": 4,
        "sequence_start": True,
        "sequence_end": False,
    }


def test_lists_in_both_directions(grpc_server: TinyGrpcServer, connect: Connect) -> None:
    found = connect(grpc_server.url).infer("double", {"x": [[1, 2, 3]]}, request_id="listed")
    assert found["y"].tolist() == [[2, 4, 6]]


def test_the_other_routes(grpc_server: TinyGrpcServer, connect: Connect) -> None:
    client = connect(grpc_server.url)
    assert client.ready() and client.ready("double") and not client.ready("none")
    assert client.metadata("double")["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    ]
    assert client.metadata()["extensions"] == []
    assert client.config("double")["max_batch_size"] == 8
    assert client.statistics("double") == {"model_stats": []}
    assert client.models(only_ready=True)[0]["state"] == "READY"
    client.load("double", settings={"a": 1}, files={"1/model.onnx": b"\xff"})
    client.unload("double", with_dependents=True)
    index, load, unload = [request for _, request, _ in grpc_server.seen[-3:]]
    assert index.ready
    assert load.parameters["file:1/model.onnx"].bytes_param == b"\xff"
    assert load.parameters["config"].string_param == '{"a": 1}'
    assert unload.parameters["unload_dependents"].bool_param


def test_errors_and_retries(grpc_server: TinyGrpcServer, connect: Connect) -> None:
    waits: list[float] = []
    client = connect(grpc_server.url, waits=waits, random=lambda: 0.0)
    codes = grpc.StatusCode
    grpc_server.script = [(codes.UNAVAILABLE, "the queue is full", (("retry-after", "2"),))]
    np.testing.assert_array_equal(client.infer("double", {"x": X})["y"], 2 * X)
    assert waits == [2.0]
    grpc_server.script = [(codes.NOT_FOUND, "no model", ())]
    with pytest.raises(ModelNotFound, match="no model"):
        client.infer("double", {"x": X})
    grpc_server.script = [(codes.DEADLINE_EXCEEDED, "it waited for too long", ())]
    with pytest.raises(RequestExpired, match="it waited for too long"):
        client.infer("double", {"x": X})


def test_no_server_is_an_error(connect: Connect) -> None:
    client = connect("grpc://127.0.0.1:9", retries=0)
    with pytest.raises(ServerUnreachable, match="cannot connect"):
        client.infer("double", {"x": X})


def test_grpc_does_not_skip_certificates(connect: Connect) -> None:
    client = connect("grpcs://127.0.0.1:9", verify=False)
    with pytest.raises(OptionError, match="gRPC always checks the server's certificate"):
        client.infer("double", {"x": X})
