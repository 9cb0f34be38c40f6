"""Read and write requests whose JSON was seen before, of those with binary tensors.

Requests with an id, a sequence or shared memory are not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from onward.serving.repeated_tensors import (
    LONGEST,
    RepeatedAnswers,
    TensorPlaces,
    place_tensors,
    remember,
)
from onward.serving.requests import InferRequest, InferResponse, RequestedOutput
from onward.serving.tensor_data import datatype_of

_SHARED = "shared_memory_region"


@dataclass(frozen=True, slots=True)
class _Known:
    """The JSON of a request, read."""

    tensors: TensorPlaces
    outputs: tuple[RequestedOutput, ...]
    parameters: dict[str, Any]
    priority: int
    timeout: float | None
    is_binary: bool


class RepeatedRequests:
    """What a server remembers of requests and answers."""

    def __init__(self) -> None:
        self._requests: dict[bytes, _Known] = {}
        self._answers = RepeatedAnswers(_answer_head, _no_front)

    def read(
        self, model: str, version: str, body: bytes | memoryview, json_length: int
    ) -> tuple[InferRequest, bool] | None:
        """A request, and whether its outputs are binary; None: its JSON is new."""
        if json_length > LONGEST or json_length == len(body):
            return None
        known = self._requests.get(bytes(body[:json_length]))
        if known is None or known.tensors.size != len(body):
            return None
        arrays = known.tensors.read(body)
        if arrays is None:
            return None
        request = InferRequest(
            model,
            arrays,
            version,
            "",
            known.outputs,
            dict(known.parameters),
            known.priority,
            known.timeout,
        )
        return request, known.is_binary

    def remember(
        self, body: bytes | memoryview, json_length: int, request: InferRequest, is_binary: bool
    ) -> None:
        """Remember a request that was read, if it is of a kind that repeats."""
        if json_length > LONGEST or json_length == len(body):
            return
        if request.id or request.sequence is not None:
            return
        if any(_SHARED in each.parameters for each in request.outputs):
            return
        tensors = place_tensors(request.inputs, json_length, len(body), _no_front)
        if tensors is None:  # some of them are JSON, or in shared memory
            return
        known = _Known(
            tensors,
            request.outputs,
            dict(request.parameters),
            request.priority,
            request.timeout,
            is_binary,
        )
        remember(self._requests, bytes(body[:json_length]), known)

    def write(
        self, request: InferRequest, response: InferResponse, is_binary: bool
    ) -> tuple[bytes, int] | None:
        """The body of an answer with all outputs binary, and its JSON's length; None: it is not."""
        if not is_binary or request.outputs or request.id or response.parameters:
            return None
        return self._answers.write(response)


def _no_front(size: int) -> bytes:
    """Tensors follow each other without anything in between."""
    return b""


def _answer_head(response: InferResponse) -> bytes:
    outputs = [
        {
            "name": name,
            "datatype": datatype_of(array.dtype),
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in response.outputs.items()
    ]
    document = {"model_name": response.model, "model_version": response.version, "outputs": outputs}
    return orjson.dumps(document)
