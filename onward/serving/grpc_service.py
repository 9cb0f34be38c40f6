"""The gRPC service of the Open Inference Protocol: inference, and handlers of all methods."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.protobuf import json_format

from onward.errors import AccessDenied
from onward.serving.core import Core
from onward.serving.grpc_errors import abort
from onward.serving.grpc_messages import (
    INFERENCE,
    Message,
    input_class,
    output_class,
    service_methods,
)
from onward.serving.grpc_request import has_typed_contents, parse_request
from onward.serving.grpc_response import serialize_response
from onward.serving.grpc_stream import Streams
from onward.serving.requests import InferResponse
from onward.serving.shared_memory import SharedMemory


class Access(Protocol):
    """Who may call: raises AccessDenied or QuotaExceeded."""

    def check(self, key: str | None, admin: bool) -> None: ...


class GrpcService:
    """Handlers of `inference.GRPCInferenceService`.

    `control` has the methods other than inference: a function of the method's name takes the
    request's message and returns the response in JSON form.
    """

    def __init__(
        self, core: Core, control: Any, shared_memory: SharedMemory, access: Access | None
    ) -> None:
        self._core = core
        self._control = control
        self._shared_memory = shared_memory
        self._access = access
        self.streams = Streams(self.submit, self.admit)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """A handler for each method of the service."""
        found = {}
        for name, method in service_methods(INFERENCE).items():
            reads = input_class(method).FromString
            if name == "ModelInfer":
                handler = grpc.unary_unary_rpc_method_handler(self.infer, reads)
            elif name == "ModelStreamInfer":
                handler = grpc.stream_stream_rpc_method_handler(self.streams.answer, reads)
            else:
                answer = functools.partial(self._answer, getattr(self._control, name))
                handler = grpc.unary_unary_rpc_method_handler(
                    functools.partial(answer, output_class(method)), reads
                )
            found[name] = handler
        return found

    def admit(self, context: Any, admin: bool = False) -> None:
        """Check the key of a call, and count it against the key's quota."""
        if self._access is not None:
            self._access.check(_key(context), admin)

    def submit(self, message: Message, **parameters: Any) -> asyncio.Future[bytes]:
        """Queue a request; cancelling the future drops it. The result is a serialized response."""
        request = parse_request(message, self._shared_memory)
        typed = has_typed_contents(message)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(result: InferResponse | Exception) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
                return
            try:
                future.set_result(
                    serialize_response(
                        request, result, self._core, self._shared_memory, parameters, typed
                    )
                )
            except Exception as error:
                future.set_exception(error)

        cancel = self._core.submit(request, done)
        if not future.done():
            future.add_done_callback(lambda found: cancel() if found.cancelled() else None)
        return future

    async def infer(self, message: Message, context: Any) -> bytes:
        """ModelInfer. The client's deadline or its cancellation cancels this coroutine."""
        try:
            self.admit(context)
            return await self.submit(message)
        except Exception as error:
            await abort(context, error)

    async def _answer(
        self, method: Callable[[Message], Any], response: Any, message: Message, context: Any
    ) -> bytes:
        """Any other method: JSON form to the bytes of its message."""
        try:
            name = getattr(method, "__name__", "")
            if name not in self._control.OPEN:
                self.admit(context, self._control.needs_admin(name, message))
            found = method(message)
            if inspect.isawaitable(found):
                found = await found
            filled = json_format.ParseDict(found, response(), ignore_unknown_fields=True)
            data: bytes = filled.SerializeToString()
            return data
        except Exception as error:
            await abort(context, error)


def _key(context: Any) -> str | None:
    """The key of a call: `authorization: Bearer KEY` or `x-api-key: KEY`."""
    for name, value in context.invocation_metadata() or ():
        if name == "x-api-key":
            return str(value)
        if name == "authorization":
            scheme, _, key = str(value).partition(" ")
            if scheme.lower() != "bearer":
                raise AccessDenied("the authorization is not of the form 'Bearer KEY'")
            return key.strip()
    return None
