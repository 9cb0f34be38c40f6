"""AsyncClient: Client for asyncio.

async with onward.AsyncClient("http://localhost:8000") as client:
    outputs = await client.infer("digits", {"pixels": pixels})
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from onward.errors import ServerUnreachable
from onward.serving.client import client_protocol as protocol
from onward.serving.client.async_connection import AsyncConnections
from onward.serving.client.call_attempts import ExchangeFailed, RetryPolicy, Send, run_call
from onward.serving.client.client_options import ClientOptions, choose_among
from onward.serving.client.client_protocol import ClientCall, HttpResponse, InferOptions, Json
from onward.serving.client.grpc_connection import GrpcConnections
from onward.serving.client.server_choice import ServerChoice
from onward.serving.requests import Array

T = TypeVar("T")


class AsyncClient:
    """Client for asyncio: the same methods and options, to be awaited in one event loop.

    A call that is cancelled closes its connection, and the server drops the request.
    """

    def __init__(
        self,
        *urls: str | Sequence[str],
        api_key: str | None = None,
        timeout: float | None = 60.0,
        retries: int = 3,
        ca_file: str | None = None,
        certificate: tuple[str, str] | None = None,
        verify: bool = True,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options = ClientOptions(
            api_key=api_key, timeout=timeout, retries=retries, ca_file=ca_file,
            certificate=certificate, verify=verify, clock=clock, random=random,
        )  # fmt: skip
        self._choice, self._sleep = choose_among(urls), sleep
        servers = self._choice.servers
        needs_tls = any(each.is_tls and not each.is_grpc for each in servers)
        tls = self._options.tls_context() if needs_tls else None
        self._connections = AsyncConnections(self._options.headers, tls)
        self._grpc: GrpcConnections | None = None
        if any(each.is_grpc for each in servers):
            self._grpc = GrpcConnections(self._options, is_async=True)
        self._datatypes: dict[tuple[str, str], dict[str, str]] = {}

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        version: str = "",
        timeout: float | None = None,
        priority: int = 0,
        request_id: str = "",
        sequence_id: int | str | None = None,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Run a model, as Client.infer does."""
        options = InferOptions(
            request_id, priority, timeout is not None, sequence_id, sequence_start, sequence_end,
            parameters or {},
        )  # fmt: skip
        arrays = await self._arrays(model, inputs, version)
        return await self._do(protocol.infer(model, arrays, outputs, version, options), timeout)

    async def metadata(self, model: str = "", *, version: str = "") -> Json:
        """The metadata of a model, or of the server."""
        return await self._do(protocol.metadata(model, version))

    async def config(self, model: str, *, version: str = "") -> Json:
        """The configuration of a model, in Triton's form."""
        return await self._do(protocol.config(model, version))

    async def statistics(self, model: str = "", *, version: str = "") -> Json:
        """The statistics of a model, or of all models."""
        return await self._do(protocol.statistics(model, version))

    async def ready(self, model: str = "", *, version: str = "") -> bool:
        """Whether the server, or a model, takes requests. False if no server is reached."""
        try:
            return await self._do(protocol.ready(model, version), retries=0)
        except ServerUnreachable:
            return False

    async def models(self, *, only_ready: bool = False) -> list[Json]:
        """The models of the repository: name, version, state, reason."""
        return await self._do(protocol.models(only_ready))

    async def load(
        self,
        model: str,
        *,
        settings: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Load or reload a model on every server."""
        await self._do_everywhere(protocol.load(model, settings, files or {}), timeout)

    async def unload(self, model: str, *, with_dependents: bool = False) -> None:
        """Unload a model on every server."""
        await self._do_everywhere(protocol.unload(model, with_dependents), None)

    async def close(self) -> None:
        """Close the connections; they are opened again if the client is used again."""
        await self._connections.close()
        if self._grpc is not None:
            await self._grpc.close_async()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _arrays(
        self, model: str, inputs: Mapping[str, Any], version: str
    ) -> dict[str, Array]:
        if all(map(protocol.is_typed, inputs.values())):
            return protocol.to_arrays(inputs, {})
        key = (model, version)
        if key not in self._datatypes:
            about = await self.metadata(model, version=version)
            self._datatypes[key] = {each["name"]: each["datatype"] for each in about["inputs"]}
        return protocol.to_arrays(inputs, self._datatypes[key])

    async def _exchange(self, send: Send) -> HttpResponse:
        if self._grpc is not None and send.server.is_grpc:
            return await self._grpc.exchange_async(send)
        return await self._connections.exchange(send)

    async def _do_everywhere(self, call: ClientCall[Any], timeout: float | None) -> None:
        for server in self._choice.servers:
            await self._do(call, timeout, choice=ServerChoice([server]))

    async def _do(
        self,
        call: ClientCall[T],
        timeout: float | None = None,
        *,
        retries: int | None = None,
        choice: ServerChoice | None = None,
    ) -> T:
        options = self._options
        policy = options.policy if retries is None else RetryPolicy(retries=retries)
        seconds = options.timeout if timeout is None else timeout
        steps = run_call(
            call, choice or self._choice, policy, seconds, options.clock, options.random
        )
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send):
                    try:
                        outcome: Any = await self._exchange(step)
                    except ExchangeFailed as failure:
                        outcome = failure
                else:
                    await self._sleep(step.seconds)
                    outcome = None
                step = steps.send(outcome)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            steps.close()
