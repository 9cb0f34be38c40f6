"""Answers of the infer route as bytes: JSON, binary tensors behind it, or an error.

JSON has no NaN and no infinity: they become null. Clients that need them ask for binary data.
"""

from __future__ import annotations

import http
import logging
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from onward.errors import (
    DeadlineExceeded,
    FeedError,
    MemoryLimitExceeded,
    NodeFailed,
    RequestInvalid,
    ServingError,
    SessionClosed,
    WorkerDied,
)
from onward.serving.classification_extension import classify
from onward.serving.requests import Array, InferRequest, InferResponse, RequestedOutput
from onward.serving.shared_regions import SharedRegions
from onward.serving.tensor_data import DATATYPES, datatype_of, to_json, to_raw

Labels = Callable[[str, str, str], Sequence[str]]  # of a model, a version and an output

_log = logging.getLogger("onward.serving")
_NUMPY = orjson.OPT_SERIALIZE_NUMPY
_BF16 = DATATYPES["BF16"]
_REASONS = {status.value: status.phrase.encode() for status in http.HTTPStatus}
_SMALL_BYTES = 16 << 10  # below, one copy costs less than the calls of a view
JSON = b"application/json"
BINARY = b"application/octet-stream"


class HttpError(ServingError):
    """A request that breaks the rules of HTTP, or a limit of this server."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def write_outputs(
    request: InferRequest,
    response: InferResponse,
    is_binary: bool,
    labels: Labels,
    shared_memory: SharedRegions | None = None,
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON if binary tensors follow it."""
    tensors: list[bytes | memoryview] = []
    entries = []
    for output in request.outputs or [RequestedOutput(name) for name in response.outputs]:
        array = response.outputs.get(output.name)
        if array is None:
            raise RequestInvalid(
                f"unexpected inference output '{output.name}' for model '{response.model}'"
            )
        if output.classes:
            names = labels(response.model, response.version, output.name)
            array = classify(array, output.classes, names)
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype_of(array.dtype),
            "shape": array.shape,
        }
        if "shared_memory_region" in output.parameters:
            entry["parameters"] = _write_shared(output, array, shared_memory)
        elif output.parameters.get("binary_data", is_binary):
            is_small = array.nbytes < _SMALL_BYTES and array.dtype.kind not in "OUS"
            data = array.tobytes() if is_small else to_raw(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            tensors.append(data)
        else:
            entry["data"] = _json_data(array)
        entries.append(entry)
    document: dict[str, Any] = {
        "model_name": response.model,
        "model_version": response.version,
        "outputs": entries,
    }
    if request.id:
        document["id"] = request.id
    if response.parameters:
        document["parameters"] = response.parameters
    head = orjson.dumps(document, option=_NUMPY)
    if not tensors:
        return head, None
    return b"".join((head, *tensors)), len(head)


def count_json_elements(request: InferRequest, response: InferResponse, is_binary: bool) -> int:
    """How many elements of an answer will be written as JSON."""
    if is_binary and not request.outputs:
        return 0
    asked = {output.name: output.parameters for output in request.outputs}
    return sum(
        array.size
        for name, array in response.outputs.items()
        if not asked.get(name, {}).get("binary_data", is_binary)
    )


def describe_error(error: BaseException) -> tuple[int, str, float | None]:
    """The HTTP status, the text and the seconds to wait of an error; unexpected ones are logged."""
    if isinstance(error, ServingError):
        return error.status, str(error), error.retry_after
    if isinstance(error, (FeedError, NodeFailed)):
        return 400, str(error), None
    if isinstance(error, (WorkerDied, SessionClosed, MemoryLimitExceeded, DeadlineExceeded)):
        return 503, str(error), None
    _log.error("a request failed unexpectedly", exc_info=error)
    return 500, f"internal error of the server: {type(error).__name__}", None


def error_body(text: str) -> bytes:
    """An error as Triton writes it: `{"error": text}`."""
    return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})


def write_answer(
    status: int,
    body: bytes,
    content_type: bytes = JSON,
    extra: bytes = b"",
    keep_alive: bool = True,
) -> bytes:
    """A whole answer of HTTP/1.1; `extra` are header lines with their line ends."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (
        status,
        _REASONS[status],
        content_type,
        len(body),
        extra,
        b"" if keep_alive else b"Connection: close\r\n",
        body,
    )


def write_error(error: BaseException, keep_alive: bool = True) -> bytes:
    """A whole answer that reports an error."""
    status, text, retry_after = describe_error(error)
    extra = error_headers(status, retry_after)
    return write_answer(status, error_body(text), extra=extra, keep_alive=keep_alive)


def error_headers(status: int, retry_after: float | None) -> bytes:
    """The header lines that an error needs."""
    lines = b""
    if retry_after is not None:
        lines += b"Retry-After: %d\r\n" % max(1, math.ceil(retry_after))
    if status == 405:
        lines += b"Allow: POST\r\n"
    if status == 401:
        lines += b'WWW-Authenticate: Bearer, Basic realm="onward"\r\n'
    return lines


def choose_encoding(accept_encoding: bytes | None) -> bytes | None:
    """The compression of an answer: only if the client asks for exactly one that we have.

    Most HTTP libraries send "gzip, deflate" by default; compressing tensors for them costs more
    time than it saves. tritonclient sends one name if its user asks for compression.
    """
    if not accept_encoding:
        return None
    asked = []
    for part in accept_encoding.lower().split(b","):
        name, _, weight = part.partition(b";")
        if weight.strip() not in (b"q=0", b"q=0.0") and name.strip() not in (b"", b"identity"):
            asked.append(name.strip())
    return asked[0] if asked in ([b"gzip"], [b"deflate"]) else None


def compress(body: bytes, encoding: bytes) -> bytes:
    """A body with the Content-Encoding gzip or deflate."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == b"gzip" else 15)
    return packer.compress(body) + packer.flush()


def _json_data(array: Array) -> Any:
    if array.dtype.kind in "OUS":
        return to_json(array)
    if array.dtype == _BF16:
        array = array.astype("float32")
    flat = array.reshape(-1)
    return flat if flat.flags.c_contiguous and flat.flags.aligned else flat.copy()


def _write_shared(
    output: RequestedOutput, array: Array, shared_memory: SharedRegions | None
) -> dict[str, Any]:
    """Write an output into a client's region; return the parameters that say where it is."""
    region = output.parameters["shared_memory_region"]
    room, offset = (
        output.parameters["shared_memory_byte_size"],
        output.parameters.get("shared_memory_offset", 0),
    )
    data = to_raw(array)
    if len(data) > room:
        raise RequestInvalid(
            f"shared memory size specified with the request for output '{output.name}' "
            f"({room} bytes) should be at least {len(data)} bytes to hold the results"
        )
    assert shared_memory is not None  # read_request refuses a region otherwise
    shared_memory.write(region, offset, data)
    found = {"shared_memory_region": region, "shared_memory_byte_size": len(data)}
    if offset:
        found["shared_memory_offset"] = offset
    return found
