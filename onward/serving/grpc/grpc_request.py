"""ModelInferRequest -> InferRequest: raw bytes, typed contents and shared memory become arrays."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from onward.errors import RequestInvalid
from onward.serving.grpc.grpc_messages import Message, parameter_values
from onward.serving.requests import (
    MAX_SEQUENCE_ID,
    Array,
    InferRequest,
    RequestedOutput,
    SequencePart,
)
from onward.serving.shared_memory import SharedMemoryRegions
from onward.serving.tensor_data import check_shape, dtype_of, from_raw, narrow_floats

# The field of InferTensorContents that holds the elements of a datatype.
CONTENTS_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    **dict.fromkeys(("FP16", "BF16", "FP32"), "fp32_contents"),
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_DIGITS = re.compile(r"[0-9]{1,20}")
REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


def parse_request(message: Message, shared_memory: SharedMemoryRegions) -> InferRequest:
    """A request from its message; what contradicts itself raises RequestInvalid."""
    request = InferRequest(
        message.model_name,
        _parse_inputs(message, shared_memory),
        message.model_version,
        message.id,
        tuple(_parse_output(each, shared_memory) for each in message.outputs),
    )
    if message.parameters:
        _set_parameters(request, parameter_values(message.parameters))
    return request


def has_typed_contents(message: Message) -> bool:
    """Whether a client sent elements, not bytes: it may read the outputs in that form."""
    if message.raw_input_contents:
        return False
    return any(each.HasField("contents") for each in message.inputs)


def _parse_inputs(message: Message, shared_memory: SharedMemoryRegions) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    raw, used = message.raw_input_contents, 0
    count = len(raw)
    for tensor in message.inputs:
        name = tensor.name
        if name in inputs:
            raise RequestInvalid(f"input '{name}' is given twice for model '{message.model_name}'")
        shape = check_shape(name, tuple(tensor.shape))
        if tensor.parameters and REGION in tensor.parameters:
            data: Any = _read_region(name, tensor, shared_memory)
        elif tensor.contents.ByteSize():
            if count:
                raise RequestInvalid(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{message.model_name}'"
                )
            inputs[name] = _from_contents(name, tensor.datatype, shape, tensor.contents)
            continue
        elif used < count:
            data, used = raw[used], used + 1
        elif math.prod(shape) == 0:
            data = b""  # a tensor without elements has nothing to send
        else:
            raise RequestInvalid(
                f"unable to find data for input tensor '{name}' for model '{message.model_name}'"
            )
        inputs[name] = from_raw(name, tensor.datatype, shape, data)
    if used != count:
        raise RequestInvalid(
            f"expected {used} raw_input_contents for model '{message.model_name}', got {count}"
        )
    return inputs


def _from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Message) -> Array:
    dtype = dtype_of(name, datatype)
    field = CONTENTS_FIELDS[datatype]
    given = [each.name for each, _ in contents.ListFields()]
    if given not in ([], [field]):
        raise RequestInvalid(
            f"input '{name}' is {datatype}: its elements belong in {field}, not in {given[0]}"
        )
    values = getattr(contents, field)
    size = math.prod(shape)
    if len(values) != size:
        raise RequestInvalid(f"input '{name}' got {len(values):,} elements, expected {size:,}")
    if datatype == "BYTES":
        array: Array = np.empty(size, object)
        array[:] = list(values)
        return array.reshape(shape)
    wide = np.array(values, _wide_type(dtype))
    if dtype.itemsize < wide.itemsize and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
            raise RequestInvalid(f"input '{name}' has an element that is not {datatype}")
    if dtype.itemsize == 2 and wide.dtype == np.float32:
        return narrow_floats(name, datatype, wide).reshape(shape)
    return wide.astype(dtype, copy=False).reshape(shape)


def _wide_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the elements in their field."""
    if dtype.kind in "iu" and dtype.itemsize < 4:
        return np.dtype(f"{dtype.kind}4")
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _read_region(name: str, tensor: Message, shared_memory: SharedMemoryRegions) -> memoryview:
    if tensor.contents.ByteSize():
        raise RequestInvalid(f"input '{name}' has contents and a shared memory region: give one")
    return shared_memory.read(*region_of(name, parameter_values(tensor.parameters)))


def region_of(name: str, parameters: dict[str, Any]) -> tuple[str, int, int]:
    """Region, offset and size of a tensor in shared memory."""
    region, size, offset = parameters[REGION], parameters.get(SIZE), parameters.get(OFFSET, 0)
    if not isinstance(region, str):
        raise RequestInvalid(f"tensor '{name}': {REGION} is not the name of a region")
    if type(size) is not int or type(offset) is not int:
        raise RequestInvalid(f"tensor '{name}': {SIZE} and {OFFSET} must be integers")
    return region, offset, size


def _parse_output(message: Message, shared_memory: SharedMemoryRegions) -> RequestedOutput:
    if not message.parameters:
        return RequestedOutput(message.name)
    parameters = parameter_values(message.parameters)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise RequestInvalid(f"output '{message.name}': classification must be a number of classes")
    if REGION in parameters:
        if classes:
            raise RequestInvalid(
                f"output '{message.name}': shared memory can't be set on classification output"
            )
        shared_memory.check(*region_of(message.name, parameters))
    return RequestedOutput(message.name, classes, parameters)


def _set_parameters(request: InferRequest, parameters: dict[str, Any]) -> None:
    """Take the parameters that the server understands; the others stay as they are."""
    parameters.pop("triton_enable_empty_final_response", None)  # the last answer is never empty
    if any(name.startswith("triton_") for name in parameters):
        raise RequestInvalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not "
            "be specified."
        )
    request.priority = _integer(parameters, "priority")
    timeout = _integer(parameters, "timeout")  # microseconds; 0: the model's own
    request.timeout = timeout / 1e6 if timeout else None
    sequence = parameters.pop("sequence_id", 0)
    is_start, is_end = _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
    if type(sequence) not in (int, str):
        raise RequestInvalid("parameter 'sequence_id' must be an integer or text")
    if isinstance(sequence, str) and len(sequence) > MAX_SEQUENCE_ID:
        raise RequestInvalid(
            f"parameter 'sequence_id' must be at most {MAX_SEQUENCE_ID} characters long"
        )
    if sequence:
        request.sequence = SequencePart(sequence, is_start, is_end)
    request.parameters = parameters


def _integer(parameters: dict[str, Any], name: str) -> int:
    value = parameters.pop(name, 0)
    if isinstance(value, str) and _DIGITS.fullmatch(value):  # KServe's parameters are often texts
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise RequestInvalid(f"parameter '{name}' must be an integer, 0 or more")
    return value


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.pop(name, False)
    if not isinstance(value, bool):
        raise RequestInvalid(f"parameter '{name}' must be true or false")
    return value
