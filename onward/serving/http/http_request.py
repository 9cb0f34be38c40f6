"""Bodies of infer requests: JSON, JSON with binary tensors behind it, or one raw tensor.

The binary tensor extension: the header Inference-Header-Content-Length is the length of the JSON;
tensors follow it in the order of the inputs. A length of 0 means that the body is one raw tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import orjson

from onward.errors import NotSupported, RequestInvalid, RequestTooLarge
from onward.serving.http.raw_input import read_raw_input
from onward.serving.requests import (
    MAX_SEQUENCE_ID,
    Array,
    InferRequest,
    RequestedOutput,
    SequencePart,
    TensorSpec,
)
from onward.serving.shared_regions import SharedRegions
from onward.serving.tensor_data import check_shape, from_json, from_raw

Body = bytes | memoryview
_MAX_ID = 1 << 64
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


def read_request(
    model: str,
    version: str,
    body: Body,
    json_length: int,
    shared_memory: SharedRegions | None = None,
    raw_inputs: Sequence[TensorSpec] = (),
) -> tuple[InferRequest, bool]:
    """A request, and whether its outputs are binary where it does not say so for one of them.

    Tensors are views of `body`. `raw_inputs`: the model's inputs, for a body without JSON.
    """
    if json_length == 0:
        name, array = read_raw_input(model, raw_inputs, body)
        return InferRequest(model, {name: array}, version), True
    document = _read_json(body if json_length == len(body) else memoryview(body)[:json_length])
    request = InferRequest(model, {}, version, _text(document, "id"))
    is_binary = _read_parameters(request, document.get("parameters"))
    request.inputs = _read_inputs(model, document.get("inputs"), body, json_length, shared_memory)
    if document.get("outputs") is not None:
        request.outputs = _read_outputs(document["outputs"], shared_memory)
    return request, is_binary


def read_json_length(header: bytes | None, body_length: int) -> int:
    """The length of the JSON part of a body, from Inference-Header-Content-Length."""
    if header is None:
        if body_length == 0:
            raise RequestInvalid(
                "failed to parse the request JSON buffer: The document is empty. at 0"
            )
        return body_length
    length = int(header) if header.isdigit() and len(header) < 16 else -1
    if not 0 <= length <= body_length:
        raise RequestInvalid(
            f"Inference-Header-Content-Length is {header[:32].decode('latin-1')!r}, "
            f"but the body has {body_length:,} bytes"
        )
    return length


def decompress(body: Body, encoding: bytes, max_bytes: int) -> bytes:
    """A body without its Content-Encoding; at most `max_bytes` are unpacked."""
    window = _WINDOWS.get(encoding.strip().lower())
    if window is None:
        raise RequestInvalid(
            f"Unsupported compression type {encoding[:32].decode('latin-1')!r}\n"
            "send the body with Content-Encoding gzip or deflate, or without one"
        )
    unpacker = zlib.decompressobj(window)
    try:
        data = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise RequestInvalid(f"the body is not {encoding.decode('latin-1')}: {error}") from None
    if len(data) > max_bytes:
        raise RequestTooLarge(f"the decompressed body has more than {max_bytes:,} bytes")
    if not unpacker.eof:
        raise RequestInvalid("the compressed body is cut off")
    if unpacker.unused_data:  # it would be dropped, tensors among it
        raise RequestInvalid(
            f"the compressed body has {len(unpacker.unused_data):,} bytes after its end\n"
            "compress the whole body as one"
        )
    return data


def _read_json(data: Body) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        text = f"failed to parse the request JSON buffer: {error}"
        if b"NaN" in bytes(data) or b"Infinity" in bytes(data):
            text += "\nJSON has no NaN and no infinity: send such tensors as binary data"
        raise RequestInvalid(text) from None
    if not isinstance(document, dict):
        raise RequestInvalid("the request is not a JSON object with 'inputs'")
    return document


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestInvalid(f"Unable to parse '{key}': it is not text")
    return value


def _read_parameters(request: InferRequest, parameters: Any) -> bool:
    """Set priority, timeout and sequence; return binary_data_output."""
    if parameters is None:
        return False
    if not isinstance(parameters, dict):
        raise RequestInvalid("Unable to parse 'parameters': it is not a JSON object")
    for key, value in parameters.items():
        if not isinstance(value, (str, int, float)):  # bool is an int
            raise RequestInvalid(f"parameter {key!r} is neither a number, a boolean nor text")
        if key.startswith("triton_"):
            raise RequestInvalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified."
            )
    left = dict(parameters)
    is_binary = _flag(left, "binary_data_output")
    if not left:
        return is_binary
    request.priority = _count(left, "priority")
    microseconds = _count(left, "timeout")
    request.timeout = microseconds / 1e6 if microseconds else None
    request.sequence = _read_sequence(left)
    request.parameters = left
    return is_binary


def _read_sequence(left: dict[str, Any]) -> SequencePart | None:
    id = left.pop("sequence_id", 0)
    is_start, is_end = _flag(left, "sequence_start"), _flag(left, "sequence_end")
    if isinstance(id, (bool, float)) or (isinstance(id, int) and not 0 <= id < _MAX_ID):
        raise RequestInvalid("Unable to parse 'sequence_id': it is neither text nor 0 or more")
    if isinstance(id, str) and len(id) > MAX_SEQUENCE_ID:
        raise RequestInvalid(
            f"Unable to parse 'sequence_id': it has more than {MAX_SEQUENCE_ID} characters"
        )
    return SequencePart(id, is_start, is_end) if id else None


def _flag(left: dict[str, Any], key: str) -> bool:
    value = left.pop(key, False)
    if not isinstance(value, bool):
        raise RequestInvalid(f"Unable to parse '{key}': it is neither true nor false")
    return value


def _count(left: dict[str, Any], key: str) -> int:
    value = left.pop(key, 0)
    if type(value) is not int or not 0 <= value < _MAX_ID:
        raise RequestInvalid(f"Unable to parse '{key}': it is not an integer of 0 or more")
    return value


def _read_inputs(
    model: str, inputs: Any, body: Body, json_length: int, shared_memory: SharedRegions | None
) -> dict[str, Array]:
    if not isinstance(inputs, list):
        raise RequestInvalid("Unable to parse 'inputs': the request has no list of inputs")
    arrays: dict[str, Array] = {}
    binary, at = memoryview(body), json_length
    for each in inputs:
        name, parameters = _name_and_parameters(each, "input")
        if name in arrays:
            raise RequestInvalid(f"input {name!r} is given more than once")
        datatype, shape = each.get("datatype"), check_shape(name, each.get("shape"))
        data, size = each.get("data"), parameters.get("binary_data_size")
        if "shared_memory_region" in parameters:
            if data is not None or size is not None:
                raise RequestInvalid(f"input {name!r} has data and a shared memory region")
            region = _read_region(parameters, f"input {name!r}", shared_memory)
            arrays[name] = from_raw(name, datatype, shape, region)
        elif size is not None:
            if type(size) is not int or size < 0 or data is not None:
                raise RequestInvalid(f"Unable to parse 'binary_data_size' of input {name!r}")
            if at + size > len(binary):
                raise RequestInvalid(
                    f"input {name!r} has a 'binary_data_size' of {size:,}, "
                    f"but only {len(binary) - at:,} bytes are left in the body"
                )
            array = from_raw(name, datatype, shape, binary[at : at + size])
            # Engines read elements at multiples of their size.
            arrays[name] = array if array.flags.aligned else array.copy()
            at += size
        elif data is None:
            raise RequestInvalid(
                f"Unable to parse 'data': input {name!r} has no data\n"
                "give 'data', 'binary_data_size' or a shared memory region"
            )
        else:
            arrays[name] = from_json(name, datatype, shape, data)
    if at != len(binary):
        raise RequestInvalid(f"unexpected additional input data for model '{model}'")
    return arrays


def _read_outputs(outputs: Any, shared_memory: SharedRegions | None) -> tuple[RequestedOutput, ...]:
    if not isinstance(outputs, list):
        raise RequestInvalid("Unable to parse 'outputs': it is not a list")
    found: dict[str, RequestedOutput] = {}
    for each in outputs:
        name, parameters = _name_and_parameters(each, "output")
        if name in found:
            raise RequestInvalid(f"output {name!r} is asked for more than once")
        classes = parameters.get("classification", 0)
        if type(classes) is not int or not 0 <= classes < 1 << 31:
            raise RequestInvalid(f"Unable to parse 'classification' of output {name!r}")
        if not isinstance(parameters.get("binary_data", False), bool):
            raise RequestInvalid(f"Unable to parse 'binary_data' of output {name!r}")
        if "shared_memory_region" in parameters:
            if classes:
                raise RequestInvalid("shared memory can't be set on classification output")
            _read_region(parameters, f"output {name!r}", shared_memory)  # fail before it runs
        found[name] = RequestedOutput(name, classes, parameters)
    return tuple(found.values())


def _name_and_parameters(each: Any, kind: str) -> tuple[str, dict[str, Any]]:
    name = each.get("name") if isinstance(each, dict) else None
    if not isinstance(name, str):
        raise RequestInvalid(f"Unable to parse 'name': an {kind} has no name")
    parameters = each.get("parameters")
    if parameters is None:
        return name, {}
    if not isinstance(parameters, dict):
        raise RequestInvalid(f"Unable to parse 'parameters' of {kind} {name!r}")
    return name, parameters


def _read_region(
    parameters: dict[str, Any], owner: str, shared_memory: SharedRegions | None
) -> memoryview:
    region = parameters["shared_memory_region"]
    size = parameters.get("shared_memory_byte_size")
    offset = parameters.get("shared_memory_offset", 0)
    if not isinstance(region, str) or type(size) is not int or type(offset) is not int:
        raise RequestInvalid(
            f"{owner}: a shared memory region needs a name, 'shared_memory_byte_size' and "
            "'shared_memory_offset' as integers"
        )
    if size < 0 or offset < 0:
        raise RequestInvalid(f"{owner}: size and offset in shared memory must be 0 or more")
    if shared_memory is None:
        raise NotSupported("this server has no shared memory")
    return shared_memory.read(region, offset, size)
