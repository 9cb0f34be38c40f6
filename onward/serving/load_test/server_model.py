"""Which model a server has, and which inputs it takes: asked over HTTP or gRPC."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from onward.errors import ModelNotFound, ModelUnavailable, OptionError
from onward.serving.load_test.protobuf_wire import bytes_field, fields, integers
from onward.serving.requests import TensorSpec

_TIMEOUT = 10.0
_SERVICE = "/inference.GRPCInferenceService/"


@dataclass(frozen=True)
class ServerModel:
    """A model of a server: its name and its inputs."""

    name: str
    inputs: tuple[TensorSpec, ...]


def find_model(url: str, name: str | None, headers: Mapping[str, str] | None = None) -> ServerModel:
    """The model of this name; without a name, the only one of the server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "grpc") or not parts.netloc:
        raise OptionError(
            f"--server takes a URL, such as http://localhost:8000 or grpc://localhost:8001, not "
            f"{url!r}"
        )
    try:
        if parts.scheme == "grpc":
            return _over_grpc(parts, name)
        return _over_http(parts, name, headers or {})
    except (OSError, http.client.HTTPException) as error:
        raise ModelUnavailable(f"no server answers at {url}: {error}") from error


def read_refusal(url: str, payload: bytes) -> str:
    """The text of the error that a server answers a request with; "" if it does not."""
    parts = urlsplit(url)
    if parts.scheme == "grpc":
        return _read_grpc_refusal(parts, payload)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), _TIMEOUT) as plain:
            secure = ssl.create_default_context() if parts.scheme == "https" else None
            used = secure.wrap_socket(plain, server_hostname=parts.hostname) if secure else plain
            used.sendall(payload)
            answer = http.client.HTTPResponse(used)
            answer.begin()
            text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    if answer.status < 300:
        return ""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:300]


def _read_grpc_refusal(url: SplitResult, payload: bytes) -> str:
    import grpc

    with grpc.insecure_channel(url.netloc) as channel:
        try:
            channel.unary_unary(_SERVICE + "ModelInfer")(payload, timeout=_TIMEOUT)
        except grpc.RpcError as error:
            return str(error.details())
    return ""


def _over_http(url: SplitResult, name: str | None, headers: Mapping[str, str]) -> ServerModel:
    if name is None:
        index = _ask(url, "POST", "/v2/repository/index", headers, {"ready": True})
        name = _only([entry["name"] for entry in index])
    path = f"/v2/models/{quote(name, safe='')}"
    found = _ask(url, "GET", path, headers)
    try:
        config = _ask(url, "GET", f"{path}/config", headers)
    except ModelNotFound:  # a server without Triton's extensions
        config = {}
    optional = {i["name"] for i in config.get("input", ()) if i.get("optional")}
    inputs = [
        TensorSpec(i["name"], i["datatype"], tuple(i["shape"]), is_optional=i["name"] in optional)
        for i in found["inputs"]
    ]
    return ServerModel(name, tuple(inputs))


def _ask(
    url: SplitResult, method: str, path: str, headers: Mapping[str, str], body: Any = None
) -> Any:
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=_TIMEOUT)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, url.path.rstrip("/") + path, data, dict(headers))
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    finally:
        connection.close()
    if answer.status != 200:
        raise ModelNotFound(f"{method} {path} was answered with {answer.status}: {text[:200]}")
    try:
        return json.loads(text)
    except ValueError:
        raise ModelNotFound(f"{path} was not answered with JSON: {text[:100]!r}") from None


def _only(names: list[str]) -> str:
    unique = sorted(set(names))
    if len(unique) != 1:
        listed = ", ".join(unique) or "no model"
        raise OptionError(f"the server has {listed}\nname one with --model")
    return unique[0]


def _over_grpc(url: SplitResult, name: str | None) -> ServerModel:
    import grpc

    with grpc.insecure_channel(url.netloc) as channel:

        def call(method: str, message: bytes) -> bytes:
            try:
                answer = channel.unary_unary(_SERVICE + method)(message, timeout=_TIMEOUT)
            except grpc.RpcError as error:
                raise ModelUnavailable(f"{method} at {url.netloc}: {error.details()}") from error
            return bytes(answer)

        if name is None:
            entries = [dict(fields(e)) for _, e in fields(call("RepositoryIndex", b"")) if e]  # type: ignore[arg-type]
            name = _only([_text(entry[1]) for entry in entries])
        asked = bytes_field(1, name.encode())
        metadata = call("ModelMetadata", asked)
        try:
            optional = _grpc_optional(call("ModelConfig", asked))
        except ModelUnavailable:  # a server without Triton's extensions
            optional = set()
    inputs = [_grpc_input(data, optional) for number, data in fields(metadata) if number == 4]
    return ServerModel(name, tuple(inputs))


def _grpc_optional(data: bytes) -> set[str]:
    """Names in ModelConfigResponse: config (1), its input (5), their name (1) and optional (8)."""
    found = set()
    for config in _messages(data, 1):
        for each in _messages(config, 5):
            values = dict(fields(each))
            if values.get(8):
                found.add(_text(values[1]))
    return found


def _messages(data: bytes, wanted: int) -> list[bytes]:
    """The messages in a field of a message."""
    return [each for number, each in fields(data) if number == wanted and isinstance(each, bytes)]


def _grpc_input(data: int | bytes, optional: Collection[str]) -> TensorSpec:
    """TensorMetadata: name (1), datatype (2), shape (3)."""
    assert isinstance(data, bytes)
    shape: list[int] = []
    named: dict[int, str] = {}
    for number, each in fields(data):
        if number == 3:
            shape += integers(each) if isinstance(each, bytes) else [each]
        else:
            named[number] = _text(each)
    return TensorSpec(named[1], named[2], tuple(shape), is_optional=named[1] in optional)


def _text(data: int | bytes) -> str:
    assert isinstance(data, bytes)
    return data.decode()
