"""Read and write ModelInfer calls whose small fields were seen before: a client's calls mostly
differ only in their tensors.

A message is its small fields, which come first, then one entry of bytes for each tensor. Only calls
with tensors of fixed sizes, without an id, parameters, a sequence or shared memory are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.serving.grpc.grpc_messages import Message, message_class
from onward.serving.grpc.grpc_response import RAW_TAG, encode_length, field_tag
from onward.serving.grpc.http2_stream import Received
from onward.serving.requests import Array, InferRequest, InferResponse, RequestedOutput
from onward.serving.tensor_data import datatype_of

_MOST, _LONGEST = 256, 4096  # calls that are remembered, and bytes of the small fields of one
_LARGE = 16 << 10  # bytes of tensors: above, the time of a call is that of copying them
_COPIED = frozenset("bBhHiIlLqQefd")  # type characters of numpy whose bytes are the tensor's

_Request = message_class("inference.ModelInferRequest")
_Response = message_class("inference.ModelInferResponse")
_SMALL_FIELDS = frozenset(
    field_tag(_Request, name)[0] for name in ("model_name", "model_version", "inputs", "outputs")
)
_INPUT_TAG = field_tag(_Request, "raw_input_contents")
_TENSOR = _INPUT_TAG[0]


@dataclass(frozen=True, slots=True)
class _Known:
    """The small fields of a call, read."""

    model: str
    version: str
    # of each tensor: name, type, elements, offset of its bytes, shape, what is in front of them
    inputs: tuple[tuple[str, np.dtype[Any], int, int, tuple[int, ...], bytes], ...]
    size: int  # bytes of the message
    outputs: tuple[RequestedOutput, ...]


class RepeatedCalls:
    """What a server remembers of calls and answers."""

    def __init__(self) -> None:
        self._calls: dict[bytes, _Known] = {}
        self._answers: dict[tuple[Any, ...], bytes] = {}

    def read(self, data: Received) -> InferRequest | None:
        """A request; None: its small fields are new."""
        if len(data) > _LARGE + _LONGEST:
            return None
        known = self._calls.get(bytes(data[: _find_tensors(data)]))
        if known is None or known.size != len(data):
            return None
        arrays: dict[str, Array] = {}
        for name, dtype, count, offset, shape, start in known.inputs:
            if data[offset - len(start) : offset] != start:
                return None
            array = np.frombuffer(data, dtype, count, offset)
            # engines read elements at multiples of their size
            arrays[name] = (array if array.flags.aligned else array.copy()).reshape(shape)
        return InferRequest(known.model, arrays, known.version, "", known.outputs)

    def remember(self, data: Received, message: Message, request: InferRequest) -> None:
        """Remember a call that was read, if it is of a kind that repeats."""
        if len(self._calls) >= _MOST or len(data) > _LARGE + _LONGEST:
            return
        if (
            message.id
            or message.parameters
            or len(message.raw_input_contents) != len(request.inputs)
        ):
            return
        if any(each.parameters for each in (*message.inputs, *message.outputs)):
            return
        at = length = _find_tensors(data)
        if not 0 < length <= _LONGEST:
            return
        inputs = []
        for name, array in request.inputs.items():
            if array.dtype.char not in _COPIED:
                return
            start = _INPUT_TAG + encode_length(array.nbytes)
            at += len(start)
            inputs.append((name, array.dtype, array.size, at, array.shape, start))
            at += array.nbytes
        if at != len(data):
            return
        self._calls[bytes(data[:length])] = _Known(
            request.model, request.version, tuple(inputs), at, request.outputs
        )

    def write(self, response: InferResponse) -> bytes | None:
        """The message of an answer with small tensors of fixed sizes; None: it is not one."""
        parts: list[bytes] = [b""]
        key: list[Any] = [response.model, response.version]
        size = 0
        for name, array in response.outputs.items():
            size += array.nbytes
            if array.dtype.char not in _COPIED or size > _LARGE:
                return None
            data = array.tobytes()
            parts += (RAW_TAG, encode_length(len(data)), data)
            key += (name, array.dtype, array.shape)
        head = self._answers.get(tuple(key))
        if head is None:
            head = _small_fields(response)
            if len(self._answers) < _MOST:
                self._answers[tuple(key)] = head
        parts[0] = head
        return b"".join(parts)


def _find_tensors(data: Received) -> int:
    """Where the tensors of a message start; 0: it has fields that calls seldom have."""
    at, end = 0, min(len(data) - 1, _LONGEST + 1)
    while at < end:
        tag = data[at]
        if tag == _TENSOR:
            return at
        if tag not in _SMALL_FIELDS or data[at + 1] > 127:
            return 0
        at += 2 + data[at + 1]
    return 0


def _small_fields(response: InferResponse) -> bytes:
    message = _Response(model_name=response.model, model_version=response.version)
    for name, array in response.outputs.items():
        message.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
    data: bytes = message.SerializeToString()
    return data
