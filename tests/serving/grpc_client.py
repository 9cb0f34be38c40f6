"""A server on a free port, and a client made from the same descriptors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc

from onward.serving.grpc.grpc_messages import (
    INFERENCE,
    input_class,
    message_class,
    output_class,
    service_methods,
)
from onward.serving.grpc.grpc_server import GrpcServer
from onward.serving.settings import ServingSettings
from onward.serving.shared_memory import SharedMemoryRegions
from tests.serving.numpy_core import NumpyCore

InferRequestMessage = message_class("inference.ModelInferRequest")
GUARD = 60.0  # seconds; a test that waits longer hangs


class Client:
    """`await client.call("ServerLive")`; `client.stream()` opens ModelStreamInfer."""

    def __init__(self, channel: grpc.aio.Channel, service: str = INFERENCE) -> None:
        self.channel = channel
        self._service = service
        self._methods = service_methods(service)

    def start(self, method: str, request: Any = None, **options: Any) -> Any:
        found = self._methods[method]
        stub = self.channel.unary_unary(
            f"/{self._service}/{method}",
            request_serializer=input_class(found).SerializeToString,
            response_deserializer=output_class(found).FromString,
        )
        fields = {k: v for k, v in options.items() if k not in ("metadata", "timeout")}
        rest = {"timeout": GUARD} | {k: v for k, v in options.items() if k not in fields}
        return stub(input_class(found)(**fields) if request is None else request, **rest)

    async def call(self, method: str, request: Any = None, **options: Any) -> Any:
        return await self.start(method, request, **options)

    def stream(self, **options: Any) -> Any:
        found = self._methods["ModelStreamInfer"]
        return self.channel.stream_stream(
            f"/{self._service}/ModelStreamInfer",
            request_serializer=input_class(found).SerializeToString,
            response_deserializer=output_class(found).FromString,
        )(timeout=GUARD, **options)


@asynccontextmanager
async def serving(
    core: NumpyCore, settings: ServingSettings | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of a server of this core."""
    server = GrpcServer(
        core,
        settings or ServingSettings(grpc_port=0),
        shared_memory=options.pop("shared_memory", SharedMemoryRegions()),
        **options,
    )
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            client = Client(channel)
            client.server = server  # type: ignore[attr-defined]
            yield client
    finally:
        await server.stop(0)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; a hang is a failure."""
    asyncio.run(asyncio.wait_for(coroutine, GUARD))


def infer_message(
    model: str, inputs: dict[str, tuple[str, list[int], bytes]], **fields: Any
) -> Any:
    """A ModelInferRequest with raw contents: inputs are name -> (datatype, shape, bytes)."""
    message = InferRequestMessage(model_name=model, **fields)
    for name, (datatype, shape, data) in inputs.items():
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(data)
    return message
