"""Requests as the bytes that are sent: HTTP with binary tensors or JSON, and gRPC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import numpy as np

from onward.serving.load_test.protobuf_wire import bytes_field, packed_field
from onward.serving.requests import Array
from onward.serving.tensor_data import datatype_of, to_json, to_raw

Feeds = Mapping[str, Array]
Form = Literal["binary", "json"]


def infer_path(model: str, version: str = "") -> str:
    """
    >>> infer_path("digits", "2")
    '/v2/models/digits/versions/2/infer'
    """
    part = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{part}/infer"


def infer_payload(
    url: str,
    model: str,
    feeds: Feeds,
    form: Form = "binary",
    version: str = "",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """One request to the server at `url`, as HTTP or (grpc://) as the message of a call."""
    if urlsplit(url).scheme == "grpc":
        return grpc_message(model, feeds, version)
    if form == "json":
        body, more = json_body(feeds), {"Content-Type": "application/json"}
    else:
        length, body = binary_body(feeds)
        more = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(length),
        }
    return http_request(url, infer_path(model, version), body, more | dict(headers or {}))


def http_request(
    url: str, path: str, body: bytes, headers: Mapping[str, str], method: str = "POST"
) -> bytes:
    """A whole HTTP/1.1 request."""
    parts = urlsplit(url)
    lines = [f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode("latin-1") + body


def binary_body(feeds: Feeds) -> tuple[int, bytes]:
    """The length of the JSON part, and the whole body; outputs are wanted as binary, too."""
    raw = {name: bytes(to_raw(_little_endian(feed))) for name, feed in feeds.items()}
    inputs = [
        _described(name, feed, parameters={"binary_data_size": len(raw[name])})
        for name, feed in feeds.items()
    ]
    request = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(request, separators=(",", ":")).encode()
    return len(head), b"".join([head, *raw.values()])


def json_body(feeds: Feeds) -> bytes:
    inputs = [_described(name, feed, data=to_json(feed)) for name, feed in feeds.items()]
    return json.dumps({"inputs": inputs}, separators=(",", ":")).encode()


def grpc_message(model: str, feeds: Feeds, version: str = "") -> bytes:
    """A ModelInferRequest: name (1), version (2), inputs (5), their raw contents (7)."""
    message = [bytes_field(1, model.encode())]
    if version:
        message.append(bytes_field(2, version.encode()))
    for name, feed in feeds.items():
        tensor = bytes_field(1, name.encode()) + bytes_field(2, datatype_of(feed.dtype).encode())
        message.append(bytes_field(5, tensor + packed_field(3, feed.shape)))
    raw = [bytes_field(7, bytes(to_raw(_little_endian(feed)))) for feed in feeds.values()]
    return b"".join([*message, *raw])


def _described(name: str, feed: Array, **more: Any) -> dict[str, Any]:
    shape = list(feed.shape)
    return {"name": name, "shape": shape, "datatype": datatype_of(feed.dtype), **more}


def _little_endian(feed: Array) -> Array:
    if feed.dtype.byteorder == ">":
        return feed.astype(feed.dtype.newbyteorder("<"))
    return np.asarray(feed)
