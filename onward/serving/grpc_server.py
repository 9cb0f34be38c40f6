"""The gRPC server: inference, health and reflection on one port.

server = GrpcServer(core, settings, shared_memory=SharedMemory(), access=None)
await server.start()   # server.port
await server.stop(grace=30)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from onward.errors import FileMissing, OptionError
from onward.serving import grpc_reflection
from onward.serving.core import Core
from onward.serving.grpc_control import GrpcControl
from onward.serving.grpc_health import Health
from onward.serving.grpc_messages import HEALTH, INFERENCE, REFLECTION
from onward.serving.grpc_service import Access, GrpcService
from onward.serving.settings import ServerSettings
from onward.serving.shared_memory import SharedMemory


class GrpcServer:
    """A server of one core on the port of the settings."""

    def __init__(
        self,
        core: Core,
        settings: ServerSettings,
        *,
        shared_memory: SharedMemory,
        access: Access | None = None,
    ) -> None:
        self._settings = settings
        self._service = GrpcService(
            core, GrpcControl(core, settings, shared_memory), shared_memory, access
        )
        self._health = Health(core)
        self._server: Any = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that it listens on, once it is started."""
        return self._port

    async def start(self) -> None:
        """Listen, and answer from now on."""
        server = grpc.aio.server(options=_options(self._settings))
        services = {
            INFERENCE: self._service.handlers(),
            HEALTH: self._health.handlers(),
            REFLECTION: grpc_reflection.handlers(),
            grpc_reflection.REFLECTION_ALPHA: grpc_reflection.handlers(),
        }
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(*each) for each in services.items())
        )
        self._port = _listen(server, self._settings)
        await server.start()
        self._server = server

    async def stop(self, grace: float) -> None:
        """Accept no more calls, answer the open ones within `grace` seconds, and close."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._health.stop()
        self._service.streams.stop()
        await server.stop(grace)


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # a port that is in use is an error
        ("grpc.max_connection_idle_ms", max(1, int(settings.keep_alive * 1000))),
        ("grpc.server_handshake_timeout_ms", max(1, int(settings.header_timeout * 1000))),
        # Clients may ping often: gRPC's own limit, 5 minutes, breaks those with keep-alive options.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ]


def _listen(server: Any, settings: ServerSettings) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port or 0}"
    try:
        credentials = _credentials(settings)
        if credentials is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise OptionError(
            f"gRPC cannot listen on {address}: it is in use or not of this machine\n"
            "choose another port with --grpc-port"
        ) from None
    return port


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    """The certificate and key of TLS, if they are set."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    for path in (settings.tls_certificate, settings.tls_key):
        if not Path(path).is_file():
            raise FileMissing(f"the file of TLS {path} does not exist")
    key, certificate = (
        Path(settings.tls_key).read_bytes(),
        Path(settings.tls_certificate).read_bytes(),
    )
    return grpc.ssl_server_credentials([(key, certificate)])
