"""ModelStreamInfer: requests are queued as they arrive and answered in their order."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from onward.errors import AccessDenied, ModelUnavailable
from onward.serving.grpc.grpc_call import GrpcCall
from onward.serving.grpc.grpc_messages import Message, message_class
from onward.serving.grpc.grpc_response import serialize_stream_error, serialize_stream_response
from onward.serving.grpc.http2_stream import Received
from onward.serving.requests import Cancel

IN_FLIGHT = 128  # requests of one stream that wait for their answers; then it is read no further
_InferRequest = message_class("inference.ModelInferRequest")


class Submit(Protocol):
    """Queues a request; `done` gets its serialized response."""

    def __call__(
        self,
        call: GrpcCall,
        message: Message,
        done: Callable[[bytes | Exception], None],
        **parameters: Any,
    ) -> Cancel: ...


class _Place:
    """A request of a stream, and its answer once it is there."""

    __slots__ = ("cancel", "id", "result")

    def __init__(self, id: str) -> None:
        self.id = id
        self.cancel: Cancel | None = None
        self.result: bytes | Exception | None = None


class InferStream:
    """One open stream; `on_end` is called when it ends."""

    def __init__(
        self,
        call: GrpcCall,
        submit: Submit,
        admit: Callable[[GrpcCall], None],
        on_end: Callable[[InferStream], None],
    ) -> None:
        self._call, self._submit, self._admit, self._on_end = call, submit, admit, on_end
        self._places: deque[_Place] = deque()
        self._has_ended = False  # the client sends no more
        self._is_stopping = False
        self._fails = call.headers.get(b"triton_grpc_error") == b"true"  # errors end the stream
        call.on_cancel = self._cancel

    @property
    def is_full(self) -> bool:
        return len(self._places) >= IN_FLIGHT

    def receive(self, data: Received) -> None:
        """Queue a request."""
        if self._is_stopping:
            return
        place = _Place("")
        self._places.append(place)
        try:
            message = _InferRequest.FromString(data)
            place.id = message.id
            self._admit(self._call)
            done = functools.partial(self._done, place)
            place.cancel = self._submit(self._call, message, done, triton_final_response=True)
        except Exception as error:
            self._done(place, error)

    def end(self) -> None:
        """The client sends no more requests."""
        self._has_ended = True
        self._send()

    def stop(self) -> None:
        """The server takes no more requests."""
        self._is_stopping = True
        self._send()

    def _done(self, place: _Place, result: bytes | Exception) -> None:
        place.result = result
        self._send()

    def _send(self) -> None:
        """Send the answers that are next; end after the last one."""
        was_full = self.is_full
        while self._places and (result := self._places[0].result) is not None:
            place = self._places.popleft()
            if not isinstance(result, Exception):
                self._call.send(serialize_stream_response(result))
            elif self._fails or isinstance(result, AccessDenied):
                self._finish(result)
                return
            else:
                self._call.send(serialize_stream_error(place.id, result))
        if not self._places and (self._has_ended or self._is_stopping):
            stopped = ModelUnavailable("the server is shutting down")
            self._finish(None if self._has_ended else stopped)
        elif was_full and not self.is_full:
            self._call.resume()

    def _finish(self, error: Exception | None) -> None:
        if error is None:
            self._call.finish()
        else:
            self._call.fail(error)
        self._cancel()

    def _cancel(self) -> None:
        places, self._places = self._places, deque()
        for place in places:
            if place.cancel is not None and place.result is None:
                place.cancel()
        self._on_end(self)
