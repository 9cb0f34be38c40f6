"""ModelStreamInfer: requests are queued as they arrive and answered in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from onward.errors import AccessDenied, ModelUnavailable
from onward.serving.grpc_errors import abort
from onward.serving.grpc_messages import Message
from onward.serving.grpc_response import serialize_stream_error, serialize_stream_response

IN_FLIGHT = 128  # requests of one stream that wait for their answers; then it is read no further

# The id of a request, and its answer or the error that kept it from being queued.
_Entry = tuple[str, "asyncio.Future[bytes] | Exception"]


class _End:
    """Why a stream ends: the client closed it (None), or an error."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Streams:
    """The open streams of a server.

    `submit` queues a request and returns the future of its serialized response; `admit` checks the
    key of a call.
    """

    def __init__(
        self,
        submit: Callable[..., asyncio.Future[bytes]],
        admit: Callable[[Any], None],
    ) -> None:
        self._submit = submit
        self._admit = admit
        self._readers: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Read no more requests: each stream ends after the answers that it owes."""
        for reader in self._readers:
            reader.cancel()

    async def answer(self, messages: AsyncIterator[Message], context: Any) -> AsyncIterator[bytes]:
        """The serialized answers of a stream."""
        entries: asyncio.Queue[_Entry | _End] = asyncio.Queue()
        room = asyncio.Semaphore(IN_FLIGHT)
        aborts = ("triton_grpc_error", "true") in (context.invocation_metadata() or ())
        reader = asyncio.create_task(self._read(messages, context, entries, room))
        self._readers.add(reader)
        try:
            while not isinstance(entry := await entries.get(), _End):
                request_id, result = entry
                room.release()
                try:
                    if isinstance(result, Exception):
                        raise result
                    data = serialize_stream_response(await result)
                except Exception as error:
                    if aborts or isinstance(error, AccessDenied):
                        await abort(context, error)
                    data = serialize_stream_error(request_id, error)
                yield data
            if entry.error is not None:
                await abort(context, entry.error)
        finally:
            self._readers.discard(reader)
            reader.cancel()
            _cancel(entries)

    async def _read(
        self,
        messages: AsyncIterator[Message],
        context: Any,
        entries: asyncio.Queue[_Entry | _End],
        room: asyncio.Semaphore,
    ) -> None:
        """Queue the requests of a stream until it ends."""
        try:
            async for message in messages:
                await room.acquire()
                result: asyncio.Future[bytes] | Exception
                try:
                    self._admit(context)
                    result = self._submit(message, triton_final_response=True)
                except Exception as error:
                    result = error
                entries.put_nowait((message.id, result))
        except asyncio.CancelledError:
            entries.put_nowait(_End(ModelUnavailable("the server is shutting down")))
        except Exception as error:
            entries.put_nowait(_End(error))
        else:
            entries.put_nowait(_End(None))


def _cancel(entries: asyncio.Queue[_Entry | _End]) -> None:
    """Drop the requests of a stream that is gone."""
    while not entries.empty():
        entry = entries.get_nowait()
        if not isinstance(entry, _End) and isinstance(entry[1], asyncio.Future):
            entry[1].cancel()
