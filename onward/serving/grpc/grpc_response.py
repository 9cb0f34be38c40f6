"""InferResponse -> the bytes of ModelInferResponse.

The tensors' bytes are joined behind the small fields by hand: a message would copy them twice more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onward.errors import RequestInvalid
from onward.serving.classification_extension import classify
from onward.serving.core import Core
from onward.serving.grpc.grpc_messages import Message, message_class, set_parameters
from onward.serving.grpc.grpc_request import CONTENTS_FIELDS, OFFSET, REGION, SIZE, region_of
from onward.serving.requests import Array, InferRequest, InferResponse, RequestedOutput
from onward.serving.shared_memory import SharedMemoryRegions
from onward.serving.tensor_data import datatype_of, to_raw

_Response = message_class("inference.ModelInferResponse")
_StreamResponse = message_class("inference.ModelStreamInferResponse")


def field_tag(message: type, field: str) -> bytes:
    """The first byte of a field whose value is bytes or a message."""
    return bytes([message.DESCRIPTOR.fields_by_name[field].number << 3 | 2])  # type: ignore[attr-defined]


RAW_TAG = field_tag(_Response, "raw_output_contents")
_INFER_TAG = field_tag(_StreamResponse, "infer_response")


def serialize_response(
    request: InferRequest,
    response: InferResponse,
    core: Core,
    shared_memory: SharedMemoryRegions,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    typed: bool = False,
) -> bytes:
    """The message of a response, with further parameters. Outputs may go to shared memory.

    `typed`: elements too. Triton's clients read bytes whatever they sent, KServe's what they sent.
    """
    message = _Response(
        model_name=response.model, model_version=response.version, id=response.id or request.id
    )
    if response.parameters or parameters:
        set_parameters(message.parameters, {**response.parameters, **parameters})
    asked = {each.name: each for each in request.outputs}
    parts: list[bytes | memoryview] = [b""]
    for name, array in response.outputs.items():
        output = asked.get(name)
        if output is not None and output.classes:
            labels = core.labels(response.model, response.version, name)
            array = classify(array, output.classes, labels)
        tensor = message.outputs.add(
            name=name, datatype=datatype_of(array.dtype), shape=array.shape
        )
        data = to_raw(array)
        if output is not None and REGION in output.parameters:
            set_parameters(tensor.parameters, _write_region(output, data, shared_memory))
            data = b""  # an empty entry, so that entries and outputs have the same order
        elif typed:
            _add_contents(tensor, array)
        parts += (RAW_TAG, encode_length(len(data)), data)
    parts[0] = message.SerializeToString()
    return b"".join(parts)


def serialize_stream_response(response: bytes) -> bytes:
    """The message of a stream that holds a serialized response."""
    return b"".join((_INFER_TAG, encode_length(len(response)), response))


def serialize_stream_error(request_id: str, error: Exception) -> bytes:
    """The message of a stream that holds an error, and the id of the request that failed."""
    message = _StreamResponse(error_message=str(error) or type(error).__name__)
    message.infer_response.id = request_id
    found: bytes = message.SerializeToString()
    return found


def _add_contents(tensor: Message, array: Array) -> None:
    if tensor.datatype in ("FP16", "BF16"):  # they have no field of their own
        return
    values = array.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        values = [each if isinstance(each, bytes) else str(each).encode() for each in values]
    getattr(tensor.contents, CONTENTS_FIELDS[tensor.datatype]).extend(values)


def _write_region(
    output: RequestedOutput, data: bytes | memoryview, shared_memory: SharedMemoryRegions
) -> dict[str, str | int]:
    """Write an output into its region; the parameters that say so."""
    region, offset, size = region_of(output.name, output.parameters)
    if len(data) > size:
        raise RequestInvalid(
            f"shared memory size specified with the request for output '{output.name}' "
            f"({size} bytes) should be at least {len(data)} bytes to hold the results"
        )
    shared_memory.write(region, offset, data)
    found: dict[str, str | int] = {REGION: region, SIZE: len(data)}
    return found | {OFFSET: offset} if offset else found


def encode_length(number: int) -> bytes:
    """A length in protobuf's form: 7 bits a byte, the lowest first."""
    if number < 128:
        return bytes((number,))
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
