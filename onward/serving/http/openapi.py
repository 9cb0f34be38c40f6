"""The OpenAPI document of the HTTP server, with an example request for each loaded model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from onward.errors import ServingError
from onward.serving.core import Core
from onward.serving.example_request import example_value
from onward.serving.http.openapi_schemas import SCHEMAS, schema_reference
from onward.serving.requests import TensorSpec

Json = dict[str, Any]

# A larger example would make the document larger than what it documents.
MAX_EXAMPLE_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class Operation:
    """A route of the document."""

    method: str
    path: str
    summary: str
    tag: str
    answer: str  # the name of a schema
    body: str | None = None
    is_admin: bool = False
    statuses: tuple[int, ...] = ()  # errors, in addition to those that each route may have


def _of_model(ending: str, summary: str, tag: str, answer: str, **more: Any) -> list[Operation]:
    method = more.pop("method", "get")
    statuses = (404, 503)
    return [
        Operation(method, path + ending, summary, tag, answer, statuses=statuses, **more)
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    ]


INFER = _of_model(
    "/infer", "Run the model", "Infer", "InferResponse", method="post", body="InferRequest"
)
ADMIN = [
    Operation(
        "post", "/v2/repository/models/{model}/load", "Load or reload a model", "Repository",
        "Object", "LoadRequest", True, (404, 503),
    ),
    Operation(
        "post", "/v2/repository/models/{model}/unload", "Unload a model", "Repository",
        "Object", "UnloadRequest", True, (404, 503),
    ),
    Operation("get", "/metrics", "Metrics for Prometheus", "Server", "Text", is_admin=True),
]  # fmt: skip
_REGION = "/v2/systemsharedmemory/region/{region}"
OPERATIONS = [
    Operation("get", "/v2/health/live", "Whether the server runs", "Health", "Live"),
    Operation(
        "get", "/v2/health/ready", "Whether requests are served", "Health", "Ready", statuses=(503,)
    ),
    *_of_model("/ready", "Whether a model is ready", "Health", "Ready"),
    Operation("get", "/v2", "Name, version and extensions", "Server", "ServerMetadata"),
    Operation("get", "/v2/models", "The names of the models that are ready", "Models", "Models"),
    *_of_model("", "Inputs and outputs of a model", "Models", "ModelMetadata"),
    *_of_model("/config", "The configuration of a model", "Models", "Object"),
    *_of_model("/stats", "Counts and times of a model", "Models", "Statistics"),
    Operation("get", "/v2/models/stats", "Counts and times of all models", "Models", "Statistics"),
    Operation(
        "post", "/v2/repository/index", "All models and their states", "Repository", "Index",
        "IndexRequest",
    ),
    Operation(
        "get", "/v2/systemsharedmemory/status", "All shared memory regions", "Shared memory",
        "Regions",
    ),
    Operation(
        "get", f"{_REGION}/status", "One region", "Shared memory", "Regions", statuses=(404,)
    ),
    Operation(
        "post", f"{_REGION}/register", "Register a region", "Shared memory", "Object",
        "RegisterRequest", True, (404,),
    ),
    Operation(
        "post", f"{_REGION}/unregister", "Forget a region", "Shared memory", "Object",
        is_admin=True, statuses=(404,),
    ),
    Operation(
        "post", "/v2/systemsharedmemory/unregister", "Forget all regions", "Shared memory",
        "Object", is_admin=True,
    ),
    Operation("get", "/v2/logging", "The log settings", "Server", "LogSettings"),
    Operation(
        "post", "/v2/logging", "Change the log settings", "Server", "LogSettings", "LogChanges",
        True,
    ),
    Operation("get", "/v2/trace/setting", "The trace settings", "Server", "Object"),
]  # fmt: skip


def make_document(core: Core, *, has_infer: bool = True, has_admin: bool = True) -> Json:
    """The document, with the names and the signatures of the models that are ready."""
    models = _signatures(core)
    metadata = core.server_metadata()
    paths: dict[str, Json] = {}
    operations = (INFER if has_infer else []) + OPERATIONS + (ADMIN if has_admin else [])
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation, models)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": str(metadata.get("name", "onward")),
            "version": str(metadata.get("version", "0")),
            "description": "Open Inference Protocol v2. Tensors may also be sent as binary data.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "x-models": {
            name: [
                {
                    "name": each.name,
                    "datatype": each.datatype,
                    "shape": list(each.shape),
                    "value": example_value(each),
                }
                for each in inputs
                if not each.is_optional
            ]
            for name, inputs in models.items()
        },
    }


def example_body(inputs: list[TensorSpec]) -> Json | None:
    """A request that the model accepts, dynamic sizes 1; None if it would be too large."""
    tensors = []
    for spec in inputs:
        if spec.is_optional:
            continue
        shape = [size if size >= 0 else 1 for size in spec.shape]
        if math.prod(shape) > MAX_EXAMPLE_ELEMENTS:
            return None
        tensors.append(
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": shape,
                "data": [example_value(spec)] * math.prod(shape),
            }
        )
    return {"inputs": tensors}


def _signatures(core: Core) -> dict[str, list[TensorSpec]]:
    found: dict[str, list[TensorSpec]] = {}
    for entry in core.index(True):
        try:
            found[entry["name"]] = list(core.signature(entry["name"])[0])
        except ServingError:
            continue  # unloaded since it was listed
    return found


def _describe(operation: Operation, models: dict[str, list[TensorSpec]]) -> Json:
    statuses = {400, 401, 429, *operation.statuses}
    if operation.body:
        statuses |= {413}
    answers: Json = {"200": _content(operation.answer, "It worked")}
    for status in sorted(statuses):
        answers[str(status)] = _content("Error", "What is wrong, in words")
    described: Json = {
        "summary": operation.summary,
        "tags": [operation.tag],
        "operationId": f"{operation.method} {operation.path}",
        "parameters": _parameters(operation.path, models),
        "responses": answers,
        "security": [{}, {"bearer": []}, {"key": []}],
    }
    if operation.is_admin:
        described["description"] = "Needs an admin key if the server has admin keys."
    if operation.body:
        described["requestBody"] = _body(operation, models)
    return described


def _parameters(path: str, models: dict[str, list[TensorSpec]]) -> list[Json]:
    found = []
    for name in ("model", "version", "region"):
        if f"{{{name}}}" not in path:
            continue
        schema: Json = {"type": "string", "minLength": 1}
        parameter: Json = {"name": name, "in": "path", "required": True, "schema": schema}
        if name == "model" and models:
            parameter["example"] = next(iter(models))
        if name == "version":
            parameter["example"] = "1"
        found.append(parameter)
    return found


def _body(operation: Operation, models: dict[str, list[TensorSpec]]) -> Json:
    assert operation.body is not None
    media: Json = {"schema": schema_reference(operation.body)}
    if operation.body == "InferRequest":
        examples = {name: example_body(inputs) for name, inputs in models.items()}
        given = {name: {"value": body} for name, body in examples.items() if body is not None}
        if given:
            media["examples"] = given
    return {
        "content": {"application/json": media},
        "required": operation.body in ("InferRequest", "RegisterRequest"),
    }


def _content(schema: str, description: str) -> Json:
    media = "text/plain" if schema == "Text" else "application/json"
    return {
        "description": description,
        "content": {media: {"schema": schema_reference(schema)}},
    }
