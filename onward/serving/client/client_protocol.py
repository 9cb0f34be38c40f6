"""The Open Inference Protocol on the client's side: requests to bytes, responses to arrays.

call = infer("digits", {"x": x}, outputs=["scores"])
call.make(0.5)        -> HttpRequest: the path, headers and parts of the body, 0.5 s left
call.read(response)   -> {"scores": array}, or raises the server's error
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np

from onward import errors
from onward.errors import RequestInvalid, ServingError
from onward.serving.requests import Array
from onward.serving.tensor_data import (
    datatype_of,
    dtype_of,
    from_json,
    from_raw,
    narrow_floats,
    to_raw,
)

T = TypeVar("T")
Json = dict[str, Any]

_JSON_LENGTH = "inference-header-content-length"
_BY_STATUS: dict[int, type[ServingError]] = {
    400: errors.RequestInvalid, 401: errors.AccessDenied, 403: errors.AccessDenied,
    404: errors.ModelNotFound, 413: errors.RequestTooLarge, 422: errors.RequestInvalid,
    429: errors.QuotaExceeded, 501: errors.NotSupported, 504: errors.RequestExpired,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, ready to be sent to any server."""

    method: str
    path: str
    body: tuple[bytes | memoryview, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered; the names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytearray | bytes


@dataclass(frozen=True, slots=True)
class ClientCall(Generic[T]):
    """What a method of the client asks of a server."""

    make: Callable[[float | None], HttpRequest]  # from the seconds that are left
    read: Callable[[HttpResponse], T]
    may_repeat: bool = True  # False: once it was sent, it is never sent again


@dataclass(frozen=True, slots=True)
class InferOptions:
    """The options of a request, in addition to its tensors."""

    request_id: str = ""
    priority: int = 0
    has_timeout: bool = False  # the server gets the time that is left
    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)


# -- inference ---------------------------------------------------------------------------------


def infer(
    model: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None = None,
    version: str = "",
    options: InferOptions | None = None,
) -> ClientCall[dict[str, Array]]:
    """Run a model: binary tensors in both directions."""
    given = options or InferOptions()
    tensors = [_input(name, array) for name, array in inputs.items()]
    data = tuple(each for _, each in tensors)
    header: Json = {"inputs": [about for about, _ in tensors]}
    if given.request_id:
        header["id"] = given.request_id
    if outputs is not None:
        header["outputs"] = [{"name": n, "parameters": {"binary_data": True}} for n in outputs]
    path = f"{_model_path(model, version)}/infer"

    def make(seconds: float | None) -> HttpRequest:
        parameters = _parameters(given, seconds if given.has_timeout else None)
        start = json.dumps({**header, "parameters": parameters}, separators=(",", ":")).encode()
        headers = (
            ("Content-Type", "application/octet-stream"),
            ("Inference-Header-Content-Length", str(len(start))),
        )
        return HttpRequest("POST", path, (start, *data), headers)

    return ClientCall(make, read_outputs, may_repeat=given.sequence_id is None)


def _input(name: str, array: Array) -> tuple[Json, bytes | memoryview]:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    datatype, data = datatype_of(array.dtype), to_raw(array)
    parameters = {"binary_data_size": len(data)}
    shape = list(array.shape)
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}, data


def _parameters(options: InferOptions, seconds: float | None) -> Json:
    found: Json = {"binary_data_output": True, **options.parameters}
    if options.priority:
        found["priority"] = options.priority
    if seconds is not None:
        found["timeout"] = max(1, int(seconds * 1e6))  # microseconds, as in Triton
    if options.sequence_id is not None:
        found["sequence_id"] = options.sequence_id
        found["sequence_start"] = options.sequence_start
        found["sequence_end"] = options.sequence_end
    return found


def read_outputs(response: HttpResponse) -> dict[str, Array]:
    """The outputs of a response by name; BYTES are object arrays of bytes."""
    check(response)
    view = memoryview(response.body)
    try:
        length = int(response.headers.get(_JSON_LENGTH, len(view)))
        header, at = json.loads(bytes(view[:length])), length
        found: dict[str, Array] = {}
        for each in header["outputs"]:
            name, shape = str(each["name"]), tuple(each["shape"])
            size = (each.get("parameters") or {}).get("binary_data_size")
            if size is None:
                found[name] = from_json(name, each["datatype"], shape, each["data"])
                continue
            found[name] = from_raw(name, each["datatype"], shape, view[at : at + size])
            at += size
    except (KeyError, TypeError, ValueError, RequestInvalid) as error:
        raise ServingError(
            f"the server's response is malformed: {type(error).__name__}: {error}\n"
            "is it a server of the Open Inference Protocol?"
        ) from error
    return found


def is_typed(value: Any) -> bool:
    """Whether an input says of which type it is; lists and numbers do not."""
    return hasattr(value, "dtype")


def to_arrays(inputs: Mapping[str, Any], datatypes: Mapping[str, str]) -> dict[str, Array]:
    """Inputs as arrays: lists get the model's types."""
    found = {}
    for name, value in inputs.items():
        if is_typed(value) or name not in datatypes:
            found[name] = np.asarray(value)
            continue
        try:
            found[name] = _to_array(name, value, datatypes[name])
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, RequestInvalid):
                raise
            raise RequestInvalid(
                f"input {name!r} takes {datatypes[name]}, which {value!r:.60} is not"
            ) from error
    return found


def _to_array(name: str, value: Any, datatype: str) -> Array:
    """A list or a number as an array; numbers that the type would change are a ValueError."""
    dtype = dtype_of(name, datatype)
    if datatype == "BYTES":
        return np.asarray(value, dtype)
    given = np.asarray(value)
    if given.dtype.kind in "OSU":
        raise ValueError("not numbers")
    if dtype.kind in "iu" and given.dtype.kind == "f" and (given != np.trunc(given)).any():
        raise ValueError("not integers")
    if datatype in ("FP16", "BF16", "FP32") and given.dtype.kind in "iuf":
        return narrow_floats(name, datatype, given.astype(np.float64))
    return np.asarray(value, dtype)


# -- everything else ---------------------------------------------------------------------------


def metadata(model: str = "", version: str = "") -> ClientCall[Json]:
    """The metadata of a model, or of the server."""
    return _get(_model_path(model, version) if model else "/v2")


def config(model: str, version: str = "") -> ClientCall[Json]:
    return _get(f"{_model_path(model, version)}/config")


def statistics(model: str = "", version: str = "") -> ClientCall[Json]:
    return _get(f"{_model_path(model, version)}/stats" if model else "/v2/models/stats")


def ready(model: str = "", version: str = "") -> ClientCall[bool]:
    """Whether the server, or a model, is ready."""
    path = f"{_model_path(model, version)}/ready" if model else "/v2/health/ready"
    return ClientCall(lambda _: HttpRequest("GET", path), _read_ready, may_repeat=False)


def models(only_ready: bool = False) -> ClientCall[list[Json]]:
    """The models of the server's repository, and their states."""
    return _post("/v2/repository/index", {"ready": True} if only_ready else {})


def load(
    model: str, settings: Mapping[str, Any] | None, files: Mapping[str, bytes]
) -> ClientCall[None]:
    """Load or reload a model; `settings` and `files` replace those of the repository."""
    parameters: Json = {
        f"file:{name}": base64.b64encode(data).decode() for name, data in files.items()
    }
    if settings is not None:
        parameters["config"] = json.dumps(dict(settings))
    path = f"/v2/repository/models/{quote(model, safe='')}/load"
    return _post(path, {"parameters": parameters} if parameters else {})


def unload(model: str, with_dependents: bool = False) -> ClientCall[None]:
    body = {"parameters": {"unload_dependents": True}} if with_dependents else {}
    return _post(f"/v2/repository/models/{quote(model, safe='')}/unload", body)


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(str(version), safe='')}" if version else path


def _get(path: str) -> ClientCall[Json]:
    return ClientCall(lambda _: HttpRequest("GET", path), _read_json)


def _post(path: str, body: Json) -> ClientCall[Any]:
    headers = (("Content-Type", "application/json"),)
    made = HttpRequest("POST", path, (json.dumps(body).encode(),), headers)
    return ClientCall(lambda _: made, _read_json)


def _read_json(response: HttpResponse) -> Any:
    check(response)
    try:
        return json.loads(response.body) if response.body else None
    except ValueError as error:
        raise ServingError(f"the server's response is not JSON: {error}") from error


def _read_ready(response: HttpResponse) -> bool:
    if response.status in (200, 400, 404, 503):
        return response.status == 200
    check(response)
    return False


# -- errors ------------------------------------------------------------------------------------


def check(response: HttpResponse) -> None:
    """Raise the error that a response reports, as the class that the server raised."""
    if 200 <= response.status < 300:
        return
    retry_after = seconds_to_wait(response)
    text = _error_text(response)
    kind = _BY_STATUS.get(response.status)
    if response.status == 503:
        kind = _kind_of_refusal(response, text)
    raise (kind or ServingError)(text, retry_after=retry_after)


def seconds_to_wait(response: HttpResponse) -> float | None:
    """The header Retry-After, if it is a number."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _error_text(response: HttpResponse) -> str:
    try:
        text = json.loads(response.body)["error"]
    except (KeyError, TypeError, ValueError):
        text = bytes(response.body[:300]).decode("utf-8", "replace").strip()
    return str(text) or f"the server answered with status {response.status}"


def _kind_of_refusal(response: HttpResponse, text: str) -> type[ServingError]:
    """HTTP has one status for three errors: the header Onward-Error names it, else its text."""
    named = getattr(errors, response.headers.get("onward-error", ""), None)
    if isinstance(named, type) and issubclass(named, ServingError):
        return named
    lower = text.lower()
    if any(word in lower for word in ("deadline", "expired", "timeout", "timed out", "too long")):
        return errors.RequestExpired
    if any(word in lower for word in ("queue", "overload", "too many")):
        return errors.ServerOverloaded
    return errors.ModelUnavailable
