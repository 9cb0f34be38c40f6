"""gRPC channels to servers, for the blocking and for the asynchronous client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.serving.client.call_attempts import ExchangeFailed, Send
from onward.serving.client.client_options import ClientOptions
from onward.serving.client.client_protocol import HttpResponse
from onward.serving.client.grpc_translation import from_grpc, from_status, messages, to_grpc
from onward.serving.client.server_choice import ServerEndpoint

grpc: Any = LazyModule("grpc")  # an optional package

_CHANNEL = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_NOT_CONNECTED = ("failed to connect", "connection refused", "dns resolution", "name resolution")
_LOST = ("socket closed", "connection reset", "recvmsg", "goaway", "broken pipe", "stream removed")


class GrpcConnections:
    """The channels of a client, one for each server."""

    def __init__(self, options: ClientOptions, *, is_async: bool) -> None:
        _check_installed()
        self._options, self._is_async = options, is_async
        self._channels: dict[ServerEndpoint, Any] = {}
        self._stubs: dict[tuple[ServerEndpoint, str], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        key = options.api_key
        self._metadata = () if key is None else (("authorization", f"Bearer {key}"),)

    def exchange(self, send: Send) -> HttpResponse:
        """Call a server and wait. ExchangeFailed: it did not answer."""
        method, message = to_grpc(send.request)
        try:
            reply = self._stub(send.server, method)(
                message, timeout=send.seconds, metadata=self._metadata
            )
        except grpc.RpcError as error:
            return _explain(error)
        return from_grpc(method, reply)

    async def exchange_async(self, send: Send) -> HttpResponse:
        """As `exchange`, in an event loop."""
        method, message = to_grpc(send.request)
        try:
            reply = await self._stub(send.server, method)(
                message, timeout=send.seconds, metadata=self._metadata
            )
        except grpc.RpcError as error:
            return _explain(error)
        return from_grpc(method, reply)

    def close(self) -> None:
        for channel in self._forget():
            channel.close()

    async def close_async(self) -> None:
        for channel in self._forget():
            await channel.close()

    def _forget(self) -> list[Any]:
        with self._lock:
            channels, self._channels, self._stubs = self._channels, {}, {}
        return list(channels.values())

    def _stub(self, server: ServerEndpoint, method: str) -> Callable[..., Any]:
        with self._lock:
            found = self._stubs.get((server, method))
            if found is None:
                channel = self._channels.get(server)
                if channel is None:
                    channel = self._channels[server] = self._open(server)
                about = messages.service_methods(messages.INFERENCE)[method]
                found = self._stubs[server, method] = channel.unary_unary(
                    f"/{messages.INFERENCE}/{method}",
                    request_serializer=messages.input_class(about).SerializeToString,
                    response_deserializer=messages.output_class(about).FromString,
                )
        return found

    def _open(self, server: ServerEndpoint) -> Any:
        host = f"[{server.host}]" if ":" in server.host else server.host
        source = grpc.aio if self._is_async else grpc
        address = f"{host}:{server.port}"
        if not server.is_tls:
            return source.insecure_channel(address, options=_CHANNEL)
        return source.secure_channel(address, self._credentials(), options=_CHANNEL)

    def _credentials(self) -> Any:
        options = self._options
        if not options.verify:
            raise OptionError(
                "verify=False: gRPC always checks the server's certificate\n"
                "give the certificate to trust as ca_file"
            )
        own = options.certificate
        return grpc.ssl_channel_credentials(
            root_certificates=Path(options.ca_file).read_bytes() if options.ca_file else None,
            private_key=Path(own[1]).read_bytes() if own else None,
            certificate_chain=Path(own[0]).read_bytes() if own else None,
        )


def _check_installed() -> None:
    try:
        grpc.RpcError  # noqa: B018  # imports it
    except ImportError:
        raise OptionError(
            "grpc:// needs the package grpcio\npip install 'onward[serve]', or use http://"
        ) from None


def _explain(error: Any) -> HttpResponse:
    """The response that an RpcError stands for. Raises ExchangeFailed if there was none."""
    code, text = error.code().name, error.details() or ""
    lower = text.lower()
    if code == "DEADLINE_EXCEEDED" and "deadline exceeded" in lower:  # the channel's own words
        raise ExchangeFailed("timed out", was_sent=True, timed_out=True) from error
    if code == "UNAVAILABLE" and any(words in lower for words in _NOT_CONNECTED):
        raise ExchangeFailed(f"cannot connect: {text}", was_sent=False) from error
    if code == "UNAVAILABLE" and any(words in lower for words in _LOST):
        raise ExchangeFailed(f"the connection failed: {text}", was_sent=True) from error
    metadata = {str(key): str(value) for key, value in error.trailing_metadata() or ()}
    return from_status(code, text, metadata)
