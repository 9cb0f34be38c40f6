"""The JSON schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from onward.serving.tensor_data import DATATYPES

Json = dict[str, Any]


def schema_reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Json, required: tuple[str, ...] = (), **more: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0, "maximum": (1 << 62) - 1}
_NUMBERS: Json = {"type": "array", "description": "Flat or nested; null in answers: NaN, infinity."}
_SHAPE: Json = {"type": "array", "items": _COUNT, "maxItems": 32}
_OPEN_SHAPE: Json = {"type": "array", "items": {"type": "integer", "minimum": -1}}
_TENSOR: Json = {"name": _TEXT, "datatype": {"enum": list(DATATYPES)}, "shape": _SHAPE}
_PARAMETERS: Json = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_METADATA = _object({"name": _TEXT, "datatype": _TEXT, "shape": _OPEN_SHAPE}, ("name", "datatype"))

_LOG_SETTINGS: Json = {
    "log_info": _FLAG,
    "log_warning": _FLAG,
    "log_error": _FLAG,
    "log_verbose_level": {"type": "integer", "minimum": 0},
}

SCHEMAS: dict[str, Json] = {
    "Error": _object({"error": _TEXT}, ("error",)),
    "Text": _TEXT,
    "Object": {"type": "object"},
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG}),
    "Models": _object({"models": _list(_TEXT)}, ("models",)),
    "ServerMetadata": _object(
        {"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}, ("name", "version")
    ),
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(_METADATA),
            "outputs": _list(_METADATA),
        },
        ("name", "inputs", "outputs"),
    ),
    "Statistics": _object({"model_stats": _list({"type": "object"})}, ("model_stats",)),
    "Index": _list(_object({"name": _TEXT, "version": _TEXT, "state": _TEXT}, ("name",))),
    "IndexRequest": _object({"ready": _FLAG}),
    "LoadRequest": _object(
        {"parameters": _object({"config": _TEXT}, additionalProperties=_TEXT)},
        description='"config": JSON text; "file:1/model.onnx": base64',
    ),
    "UnloadRequest": _object({"parameters": _object({"unload_dependents": _FLAG})}),
    "RegisterRequest": _object(
        {"key": _TEXT, "offset": _COUNT, "byte_size": _COUNT}, ("key", "byte_size")
    ),
    "Regions": _list(_object({"name": _TEXT, "key": _TEXT, "offset": _COUNT, "byte_size": _COUNT})),
    "LogSettings": _object(_LOG_SETTINGS),
    "LogChanges": _object(_LOG_SETTINGS, additionalProperties=False),
    "InferRequest": _object(
        {
            "id": _TEXT,
            "parameters": _PARAMETERS,
            "inputs": _list(
                _object(
                    {**_TENSOR, "parameters": _PARAMETERS, "data": _NUMBERS},
                    ("name", "datatype", "shape"),
                )
            ),
            "outputs": _list(_object({"name": _TEXT, "parameters": _PARAMETERS}, ("name",))),
        },
        ("inputs",),
    ),
    "InferResponse": _object(
        {
            "id": _TEXT,
            "model_name": _TEXT,
            "model_version": _TEXT,
            "outputs": _list(_object({**_TENSOR, "data": _NUMBERS}, tuple(_TENSOR))),
        },
        ("model_name", "outputs"),
    ),
}
