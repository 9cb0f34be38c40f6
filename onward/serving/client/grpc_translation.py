"""Requests of the client as gRPC messages, and replies as responses of HTTP; without I/O.

    method, message = to_grpc(request)              # "ModelInfer", a ModelInferRequest
    response = from_grpc(method, reply)             # as if an HTTP server had answered

All that the client knows about errors, retries and tensors holds for both protocols then.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from onward.lazy import LazyModule
from onward.serving.client.client_protocol import HttpRequest, HttpResponse, Json

messages: Any = LazyModule("onward.serving.grpc.grpc_messages")  # needs protobuf
Message = Any

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|config|stats|ready))?")
_REPOSITORY = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
_OF_MODEL = {
    "infer": "ModelInfer", "config": "ModelConfig", "stats": "ModelStatistics",
    "ready": "ModelReady", None: "ModelMetadata",
}  # fmt: skip
_OF_SERVER = {
    "/v2": "ServerMetadata", "/v2/health/ready": "ServerReady",
    "/v2/models/stats": "ModelStatistics", "/v2/repository/index": "RepositoryIndex",
}  # fmt: skip
_STATUS = {
    "INVALID_ARGUMENT": 400, "OUT_OF_RANGE": 400, "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504,
}  # fmt: skip
_HTTP_ALONE = ("binary_data_output", "binary_data")  # gRPC's tensors are always binary


def to_grpc(request: HttpRequest) -> tuple[str, Message]:
    """The method of the service and its message."""
    if request.path in _OF_SERVER:
        method = _OF_SERVER[request.path]
        message = _message(method)
        if method == "RepositoryIndex":
            message.ready = bool(_json(request).get("ready"))
        return method, message
    found = _REPOSITORY.fullmatch(request.path)
    if found is not None:
        return _to_control(unquote(found[1]), found[2], _json(request))
    found = _MODEL.fullmatch(request.path)
    assert found is not None, request.path
    method = _OF_MODEL[found[3]]
    message = _message(method)
    name, version = unquote(found[1]), unquote(found[2] or "")
    if method == "ModelInfer":
        message.model_name, message.model_version = name, version
        _fill_infer(message, request)
    else:
        message.name, message.version = name, version
    return method, message


def _json(request: HttpRequest) -> Json:
    found: Json = json.loads(bytes(request.body[0]))
    return found


def _message(method: str) -> Message:
    return messages.message_class(f"inference.{method}Request")()


def _fill_infer(message: Message, request: HttpRequest) -> None:
    header = _json(request)
    message.id = header.get("id", "")
    kept = {k: v for k, v in header["parameters"].items() if k not in _HTTP_ALONE}
    messages.set_parameters(message.parameters, kept)
    for each in header["inputs"]:
        message.inputs.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
    for each in header.get("outputs", ()):
        message.outputs.add(name=each["name"])
    message.raw_input_contents.extend(bytes(part) for part in request.body[1:])


def _to_control(model: str, verb: str, body: Json) -> tuple[str, Message]:
    method = f"RepositoryModel{verb.capitalize()}"
    message = _message(method)
    message.model_name = model
    for name, value in body.get("parameters", {}).items():
        if isinstance(value, bool):
            message.parameters[name].bool_param = value
        elif name.startswith("file:"):
            message.parameters[name].bytes_param = base64.b64decode(value)
        else:
            message.parameters[name].string_param = value
    return method, message


def from_grpc(method: str, reply: Message) -> HttpResponse:
    """A reply as the response that an HTTP server gives."""
    if method == "ModelInfer":
        return _from_infer(reply)
    if method in ("ServerReady", "ModelReady"):
        return HttpResponse(200 if reply.ready else 503, {}, b"")
    if method.startswith("RepositoryModel"):
        return HttpResponse(200, {}, b"")
    plain: Any = to_plain(reply)
    if method == "RepositoryIndex":
        plain = plain["models"]
    elif method == "ModelConfig":
        plain = plain["config"]
    return HttpResponse(200, {}, json.dumps(plain).encode())


def _from_infer(reply: Message) -> HttpResponse:
    parts, outputs = list(reply.raw_output_contents), []
    for index, each in enumerate(reply.outputs):
        about: Json = {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
        if parts:
            about["parameters"] = {"binary_data_size": len(parts[index])}
        else:  # KServe's servers may answer with lists
            about["data"] = _listed(each.contents)
        outputs.append(about)
    header = json.dumps({"outputs": outputs}).encode()
    headers = {"inference-header-content-length": str(len(header))}
    return HttpResponse(200, headers, bytearray(b"".join([header, *parts])))


def _listed(contents: Message) -> list[Any]:
    for field, values in contents.ListFields():
        if field.name == "bytes_contents":
            return [{"b64": base64.b64encode(each).decode()} for each in values]
        return list(values)
    return []


def from_status(code: str, text: str, metadata: Mapping[str, str]) -> HttpResponse:
    """An error of gRPC, by the name of its code, as an HTTP server reports it."""
    status = _STATUS.get(code, 500)
    if code == "RESOURCE_EXHAUSTED" and "bytes" in text:
        status = 413
    kept = {k: v for k, v in metadata.items() if k in ("retry-after", "onward-error")}
    return HttpResponse(status, kept, json.dumps({"error": text}).encode())


def to_plain(message: Message) -> Json:
    """A message as a dictionary with all its fields; unlike protobuf's JSON, numbers stay so."""
    found: Json = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            is_message = field.message_type.fields_by_name["value"].message_type is not None
            found[field.name] = {k: to_plain(v) if is_message else v for k, v in value.items()}
        elif field.message_type is None:
            found[field.name] = _scalar(field, value)
        elif _is_repeated(field):
            found[field.name] = [to_plain(each) for each in value]
        elif message.HasField(field.name):
            found[field.name] = to_plain(value)
    return found


def _scalar(field: Any, value: Any) -> Any:
    if _is_repeated(field):
        return [_one(field, each) for each in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)  # protobuf 6 and later
    return bool(found) if found is not None else field.label == field.LABEL_REPEATED
