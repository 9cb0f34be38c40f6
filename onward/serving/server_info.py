"""ServerInfo: where a running server listens, and what it serves."""

from __future__ import annotations

from dataclasses import dataclass

from onward.serving.requests import TensorSpec


@dataclass(frozen=True)
class ServedModelInfo:
    """A model that is ready."""

    name: str
    version: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    batching: str = ""  # in words: "up to 32 rows", or why requests are not joined
    keeps_sequences: bool = False  # requests need the id of a sequence


@dataclass(frozen=True)
class ServerInfo:
    """Addresses with their real ports, and the models in the order of the repository."""

    http_url: str  # http://127.0.0.1:8000
    grpc_address: str | None  # 127.0.0.1:8001
    admin_url: str  # the HTTP one, unless admin routes have a port of their own
    models: list[ServedModelInfo]
    needs_key: bool = False
