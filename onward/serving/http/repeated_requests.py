"""Read and write requests whose JSON was seen before: a client's requests mostly differ only in
their tensors.

Only requests with binary tensors, without an id, a sequence or shared memory are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from onward.serving.requests import Array, InferRequest, InferResponse, RequestedOutput
from onward.serving.tensor_data import datatype_of

_MOST, _LONGEST = 256, 4096  # requests that are remembered, and bytes of the JSON of one
_SHARED = "shared_memory_region"
_COPIED = frozenset("?bBhHiIlLqQefd")  # type characters of numpy whose bytes are the tensor's


@dataclass(frozen=True, slots=True)
class _Known:
    """The JSON of a request, read."""

    inputs: tuple[tuple[str, np.dtype[Any], int, int, tuple[int, ...]], ...]  # ..., count, offset
    size: int  # bytes of the body
    outputs: tuple[RequestedOutput, ...]
    parameters: dict[str, Any]
    priority: int
    timeout: float | None
    is_binary: bool


class RepeatedRequests:
    """What a server remembers of requests and answers."""

    def __init__(self) -> None:
        self._requests: dict[bytes, _Known] = {}
        self._answers: dict[tuple[Any, ...], bytes] = {}

    def read(
        self, model: str, version: str, body: bytes | memoryview, json_length: int
    ) -> tuple[InferRequest, bool] | None:
        """A request, and whether its outputs are binary; None: its JSON is new."""
        if json_length > _LONGEST or json_length == len(body):
            return None
        known = self._requests.get(bytes(body[:json_length]))
        if known is None or known.size != len(body):
            return None
        arrays: dict[str, Array] = {}
        for name, dtype, count, offset, shape in known.inputs:
            array = np.frombuffer(body, dtype, count, offset)
            # engines read elements at multiples of their size
            arrays[name] = (array if array.flags.aligned else array.copy()).reshape(shape)
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
        arrays = request.inputs
        if json_length > _LONGEST or json_length == len(body) or len(self._requests) >= _MOST:
            return
        if request.id or request.sequence is not None:
            return
        if any(_SHARED in each.parameters for each in request.outputs):
            return
        inputs, offset = [], json_length
        for name, array in arrays.items():
            if array.dtype.char not in _COPIED or array.dtype.char == "?":  # bools are checked
                return
            inputs.append((name, array.dtype, array.size, offset, array.shape))
            offset += array.nbytes
        if offset != len(body):  # some of them are JSON, or in shared memory
            return
        self._requests[bytes(body[:json_length])] = _Known(
            tuple(inputs),
            len(body),
            request.outputs,
            dict(request.parameters),
            request.priority,
            request.timeout,
            is_binary,
        )

    def write(
        self, request: InferRequest, response: InferResponse, is_binary: bool
    ) -> tuple[bytes, int] | None:
        """The body of an answer with all outputs binary, and its JSON's length; None: it is not."""
        if not is_binary or request.outputs or request.id or response.parameters:
            return None
        parts = []
        key: list[Any] = [response.model, response.version]
        for name, array in response.outputs.items():
            if array.dtype.char not in _COPIED:
                return None
            parts.append(array.tobytes())
            key += (name, array.dtype, array.shape)
        head = self._answers.get(tuple(key))
        if head is None:
            head = _answer_head(response)
            if len(self._answers) < _MOST:
                self._answers[tuple(key)] = head
        return b"".join((head, *parts)), len(head)


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
