"""The gRPC service of the Open Inference Protocol: inference, and all methods by name."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from google.protobuf import json_format

from onward.errors import AccessDenied, ServingError
from onward.serving.core import Core
from onward.serving.grpc.grpc_call import GrpcCall, GrpcMethod
from onward.serving.grpc.grpc_control import GrpcControl
from onward.serving.grpc.grpc_messages import (
    INFERENCE,
    Message,
    input_class,
    message_class,
    output_class,
    service_methods,
)
from onward.serving.grpc.grpc_request import has_typed_contents, parse_request
from onward.serving.grpc.grpc_response import serialize_response
from onward.serving.grpc.grpc_stream import InferStream
from onward.serving.grpc.http2_stream import Received
from onward.serving.grpc.repeated_calls import RepeatedCalls
from onward.serving.requests import Cancel, InferRequest, InferResponse
from onward.serving.shared_memory import SharedMemoryRegions

_InferRequest = message_class("inference.ModelInferRequest")


class AccessCheck(Protocol):
    """Checks who may call: raises AccessDenied or QuotaExceeded."""

    def check(self, key: str | None, admin: bool, client: str) -> None: ...


class GrpcService:
    """Methods of `inference.GRPCInferenceService`."""

    def __init__(
        self,
        core: Core,
        control: GrpcControl,
        shared_memory: SharedMemoryRegions,
        access: AccessCheck | None,
    ) -> None:
        self._core = core
        self._control = control
        self._shared_memory = shared_memory
        self._access = access
        self._repeated = RepeatedCalls()
        self._streams: set[InferStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # so that they are not collected

    def methods(self) -> dict[str, GrpcMethod]:
        """Each method of the service."""
        found = {
            "ModelInfer": GrpcMethod(answer=self.infer),
            "ModelStreamInfer": GrpcMethod(open=self._open_stream),
        }
        for name, method in service_methods(INFERENCE).items():
            if name not in found:
                function = getattr(self._control, name)
                answer = functools.partial(
                    self._answer, function, input_class(method), output_class(method)
                )
                found[name] = GrpcMethod(answer=answer)
        return found

    def stop(self) -> None:
        """Take no more requests of streams: each ends after the answers that it owes."""
        for stream in list(self._streams):
            stream.stop()

    def admit(self, call: GrpcCall, admin: bool = False) -> None:
        """Check the key of a call, and count it against the key's quota."""
        if self._access is not None:
            self._access.check(_key(call), admin, call.client)

    def infer(self, call: GrpcCall, data: Received) -> None:
        """ModelInfer: a client that is gone drops its request."""

        def done(result: bytes | Exception) -> None:
            if isinstance(result, Exception):
                call.fail(result)
            else:
                call.answer(result)

        model = version = ""
        try:
            self.admit(call)
            request = self._repeated.read(data)
            if request is not None:
                call.on_cancel = self._queue(call, request, done)
                return
            message = _InferRequest.FromString(data)
            model, version = message.model_name, message.model_version
            request = parse_request(message, self._shared_memory)
            self._repeated.remember(data, message, request)
            call.on_cancel = self._queue(call, request, done, has_typed_contents(message))
        except Exception as error:
            self._core.count_refused(model, version, error)
            call.fail(error)

    def submit(
        self,
        call: GrpcCall,
        message: Message,
        done: Callable[[bytes | Exception], None],
        **parameters: Any,
    ) -> Cancel:
        """Queue a request; `done` gets the serialized response, with further parameters."""
        try:
            request = parse_request(message, self._shared_memory)
        except ServingError as error:
            self._core.count_refused(message.model_name, message.model_version, error, message.id)
            raise
        return self._queue(call, request, done, has_typed_contents(message), parameters)

    def _queue(
        self,
        call: GrpcCall,
        request: InferRequest,
        done: Callable[[bytes | Exception], None],
        typed: bool = False,
        parameters: Mapping[str, Any] = MappingProxyType({}),
    ) -> Cancel:
        traceparent = call.headers.get(b"traceparent")
        if traceparent is not None:
            request.traceparent = traceparent.decode("latin-1")
        is_plain = not (typed or parameters or request.id) and not any(
            each.classes or each.parameters for each in request.outputs
        )

        def serialize(result: InferResponse | Exception) -> None:
            if isinstance(result, Exception):
                done(result)
                return
            data = None
            try:
                if is_plain and not (result.id or result.parameters):
                    written = self._repeated.answers.write(result)
                    if written is not None:
                        data = written[0]
                if data is None:
                    data = serialize_response(
                        request, result, self._core, self._shared_memory, parameters, typed
                    )
            except Exception as error:
                done(error)
                return
            done(data)

        return self._core.submit(request, serialize)

    def _open_stream(self, call: GrpcCall) -> InferStream:
        stream = InferStream(call, self.submit, self.admit, self._streams.discard)
        self._streams.add(stream)
        return stream

    def _answer(
        self,
        function: Callable[[Message], Any],
        reads: Any,
        writes: Any,
        call: GrpcCall,
        data: Received,
    ) -> None:
        """Any other method: the JSON form of a response becomes its message."""
        try:
            message = reads.FromString(data)
            name = function.__name__
            if name not in self._control.OPEN:
                self.admit(call, self._control.needs_admin(name, message))
            found = function(message)
            if inspect.iscoroutine(found):
                task = asyncio.get_running_loop().create_task(_finish(call, found, writes))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                call.answer(_to_message(found, writes))
        except Exception as error:
            call.fail(error)


async def _finish(call: GrpcCall, found: Coroutine[Any, Any, Any], writes: Any) -> None:
    try:
        call.answer(_to_message(await found, writes))
    except Exception as error:
        call.fail(error)


def _to_message(found: dict[str, Any], writes: Any) -> bytes:
    message = json_format.ParseDict(found, writes(), ignore_unknown_fields=True)
    data: bytes = message.SerializeToString()
    return data


def _key(call: GrpcCall) -> str | None:
    """The key of a call: `x-api-key: KEY` or `authorization: Bearer KEY`."""
    key = call.headers.get(b"x-api-key")
    if key is not None:
        return key.decode("latin-1")
    authorization = call.headers.get(b"authorization")
    if authorization is None:
        return None
    scheme, _, value = authorization.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        raise AccessDenied("the authorization is not of the form 'Bearer KEY'")
    return value.strip()
