"""Read and write ModelInfer calls whose small fields were seen before.

A message is its small fields, which come first, then one entry of bytes for each tensor. Only calls
with tensors of fixed sizes, without an id, parameters, a sequence or shared memory are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

from onward.serving.grpc.grpc_messages import Message, message_class
from onward.serving.grpc.grpc_response import RAW_TAG, encode_length, field_tag
from onward.serving.grpc.http2_stream import Received
from onward.serving.repeated_tensors import (
    LONGEST,
    RepeatedAnswers,
    TensorPlaces,
    place_tensors,
    remember,
)
from onward.serving.requests import InferRequest, InferResponse, RequestedOutput
from onward.serving.tensor_data import datatype_of

_LARGE = 16 << 10  # bytes of tensors: above, the time of a call is that of copying them

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
    tensors: TensorPlaces
    outputs: tuple[RequestedOutput, ...]


class RepeatedCalls:
    """What a server remembers of calls and answers."""

    def __init__(self) -> None:
        self._calls: dict[bytes, _Known] = {}
        # messages of answers with small tensors of fixed sizes
        self.answers = RepeatedAnswers(_small_fields, _output_front, _LARGE)

    def read(self, data: Received) -> InferRequest | None:
        """A request; None: its small fields are new."""
        if len(data) > _LARGE + LONGEST:
            return None
        known = self._calls.get(bytes(data[: _find_tensors(data)]))
        if known is None or known.tensors.size != len(data):
            return None
        arrays = known.tensors.read(data)
        if arrays is None:
            return None
        return InferRequest(known.model, arrays, known.version, "", known.outputs)

    def remember(self, data: Received, message: Message, request: InferRequest) -> None:
        """Remember a call that was read, if it is of a kind that repeats."""
        if len(data) > _LARGE + LONGEST:
            return
        if (
            message.id
            or message.parameters
            or len(message.raw_input_contents) != len(request.inputs)
        ):
            return
        if any(each.parameters for each in (*message.inputs, *message.outputs)):
            return
        length = _find_tensors(data)
        if not 0 < length <= LONGEST:
            return
        tensors = place_tensors(request.inputs, length, len(data), _input_front)
        if tensors is None:
            return
        known = _Known(request.model, request.version, tensors, request.outputs)
        remember(self._calls, bytes(data[:length]), known)


def _find_tensors(data: Received) -> int:
    """Where the tensors of a message start; 0: it has fields that calls seldom have."""
    at, end = 0, min(len(data) - 1, LONGEST + 1)
    while at < end:
        tag = data[at]
        if tag == _TENSOR:
            return at
        if tag not in _SMALL_FIELDS or data[at + 1] > 127:
            return 0
        at += 2 + data[at + 1]
    return 0


def _input_front(size: int) -> bytes:
    return _INPUT_TAG + encode_length(size)


def _output_front(size: int) -> bytes:
    return RAW_TAG + encode_length(size)


def _small_fields(response: InferResponse) -> bytes:
    message = _Response(model_name=response.model, model_version=response.version)
    for name, array in response.outputs.items():
        message.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
    data: bytes = message.SerializeToString()
    return data
