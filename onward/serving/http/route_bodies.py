"""The JSON bodies of the routes of the ASGI application."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson
from starlette.responses import Response

from onward.errors import RequestInvalid


def json_response(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data, default=str), status, media_type="application/json")


def read_json_object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestInvalid(f"failed to parse the request JSON buffer: {error}") from None
    if not isinstance(document, dict):
        raise RequestInvalid("the request is not a JSON object")
    return document


def read_load_parameters(body: bytes) -> dict[str, Any]:
    """The parameters of a load request: "config" as JSON text, "file:PATH" as bytes."""
    parameters = read_json_object(body).get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestInvalid("Unable to parse 'parameters': it is not a JSON object")
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if name == "config" and isinstance(value, dict):
            value = orjson.dumps(value).decode()
        if not isinstance(value, str):
            raise RequestInvalid(f"Unable to parse the parameter {name!r}: it is not text")
        if name == "config":
            found[name] = value
        elif name.startswith("file:"):
            found[name] = _decode(name, value)
        else:
            raise RequestInvalid(f"a load request has no parameter {name!r}: config, file:PATH")
    return found


def _decode(name: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise RequestInvalid(f"the content of {name!r} is not base64") from None
