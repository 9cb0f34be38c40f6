"""What a transport (HTTP, gRPC, Python) hands to the server, and what it gets back.

request = InferRequest("digits", {"pixels": pixels})
response.outputs["scores"]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MAX_SEQUENCE_ID = 128  # characters: ids are kept while their sequences are


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model: -1 in `shape` is any size; (): a scalar, or of any rank."""

    name: str
    datatype: str  # of the Open Inference Protocol: "FP32", "INT64", "BYTES", ...
    shape: tuple[int, ...]
    axes: tuple[str, ...] = ()  # names of the axes, "" where the model gives none
    is_optional: bool = False
    is_binary: bool = False  # BYTES that are no text, such as images: an instance is given bytes
    samples: tuple[str | float, ...] = ()  # elements that it takes, if it refuses others
    has_default: bool = False  # an initializer that a request may replace, and then runs alone


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client asked for."""

    name: str
    classes: int = 0  # classification extension: the top classes as "score:index:label"
    parameters: dict[str, Any] = field(default_factory=dict)  # binary_data, shared memory, ...


@dataclass(frozen=True, slots=True)
class SequencePart:
    """A request's place in a sequence of requests, for models with state."""

    id: int | str
    is_start: bool = False
    is_end: bool = False


@dataclass(slots=True)
class InferRequest:
    """One request, its tensors already parsed and checked against their own headers."""

    model: str
    inputs: dict[str, Array]  # BYTES are object arrays of bytes
    version: str = ""  # "": the server's choice, the highest one
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()  # (): all of them
    parameters: dict[str, Any] = field(default_factory=dict)
    priority: int = 0  # 0: the model's default; 1 is the first to be served
    timeout: float | None = None  # seconds from its arrival, after which it is not worth running
    sequence: SequencePart | None = None
    traceparent: str = ""  # the header of W3C's trace context, for telemetry


@dataclass(slots=True)
class InferResponse:
    """The outputs of one request, in the order of the model or of the request."""

    model: str
    version: str
    outputs: dict[str, Array]
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


# Called once, in the event loop's thread, with the response or with the error to report.
Done = Callable[[InferResponse | Exception], None]
Cancel = Callable[[], None]  # drops the request if it has not started; it is then never done
