"""repeated_calls: a call that was seen before is read and answered as it was the first time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.serving.grpc.grpc_request import parse_request
from onward.serving.grpc.grpc_response import serialize_response
from onward.serving.grpc.repeated_calls import RepeatedCalls
from onward.serving.requests import InferRequest, InferResponse
from onward.serving.shared_memory import SharedMemoryRegions
from onward.serving.tensor_data import DATATYPES, datatype_of
from tests.serving.grpc_client import InferRequestMessage, infer_message
from tests.serving.numpy_core import NumpyCore

FIXED = [name for name in DATATYPES if name not in ("BOOL", "BYTES", "BF16")]


def message_of(arrays: dict[str, np.ndarray[Any, Any]], **fields: Any) -> Any:
    return infer_message(
        "m",
        {n: (datatype_of(a.dtype), list(a.shape), a.tobytes()) for n, a in arrays.items()},
        **fields,
    )


def remembered(*messages: Any) -> RepeatedCalls:
    calls = RepeatedCalls()
    for message in messages:
        data = message.SerializeToString()
        assert calls.read(data) is None
        copy = InferRequestMessage.FromString(data)
        calls.remember(data, copy, parse_request(copy, SharedMemoryRegions()))
    return calls


def check_equal(found: InferRequest | None, message: Any) -> None:
    expected = parse_request(message, SharedMemoryRegions())
    assert found is not None
    assert (found.model, found.version, found.outputs) == (
        expected.model,
        expected.version,
        expected.outputs,
    )
    assert list(found.inputs) == list(expected.inputs)
    for name, array in expected.inputs.items():
        assert found.inputs[name].dtype == array.dtype and found.inputs[name].flags.aligned
        np.testing.assert_array_equal(found.inputs[name], array)


@given(
    st.lists(
        st.tuples(st.sampled_from(FIXED), st.lists(st.integers(0, 9), max_size=3)),
        min_size=1,
        max_size=3,
    ),
    st.text(max_size=9),
    st.sampled_from(["", "3"]),
)
def test_the_same_call_with_other_tensors(
    tensors: list[tuple[str, list[int]]], output: str, version: str
) -> None:
    def message(value: int) -> Any:
        found = message_of(
            {f"x{i}": np.full(shape, value, DATATYPES[t]) for i, (t, shape) in enumerate(tensors)},
            model_version=version,
        )
        if output:
            found.outputs.add(name=output)
        return found

    calls = remembered(message(1))
    for value in (2, 3):
        check_equal(calls.read(memoryview(message(value).SerializeToString())), message(value))


def test_calls_of_other_shapes_names_or_lengths_are_not_the_same() -> None:
    x = np.ones((2, 3), np.float32)
    calls = remembered(message_of({"x": x}))
    for other in (
        message_of({"x": x[:1]}),
        message_of({"x": x.astype(np.int32)}),
        message_of({"y": x}),
        message_of({"x": x}, model_version="1"),
        message_of({"x": x}, id="a"),
        InferRequestMessage(model_name="m"),
    ):
        assert calls.read(other.SerializeToString()) is None
    data = message_of({"x": x}).SerializeToString()
    assert calls.read(data) is not None
    for wrong in (data[:-1], data + b"\0", data + data, data[:10], b"", b"\x3a"):
        assert calls.read(wrong) is None


def test_entries_that_are_divided_otherwise_are_not_the_same() -> None:
    a, b = np.ones(2, np.float32), np.ones(4, np.float32)
    message = message_of({"a": a, "b": b})
    calls = remembered(message)
    del message.raw_input_contents[:]
    message.raw_input_contents.extend([b.tobytes(), a.tobytes()])
    assert calls.read(message.SerializeToString()) is None


def with_parameter(place: str) -> Any:
    message = message_of({"x": np.ones(2, np.float32)})
    message.outputs.add(name="y")
    owner = {"call": message, "input": message.inputs[0], "output": message.outputs[0]}[place]
    owner.parameters["priority"].int64_param = 1
    return message


def typed() -> Any:
    message = InferRequestMessage(model_name="m")
    message.inputs.add(name="x", datatype="FP32", shape=[1], contents={"fp32_contents": np.ones(1)})
    return message


@pytest.mark.parametrize(
    "message",
    [
        message_of({"x": np.ones(2, np.float32)}, id="a"),
        message_of({"x": np.ones(2, np.bool_)}),
        message_of({"x": np.ones(1 << 16, np.float32)}),
        infer_message("m", {"x": ("BYTES", [1], b"\1\0\0\0a")}),
        infer_message("m" * 200, {"x": ("FP32", [1], b"1234")}),
        InferRequestMessage(model_name="m"),
        typed(),
        with_parameter("call"),
        with_parameter("input"),
        with_parameter("output"),
    ],
)
def test_calls_of_other_kinds_are_not_remembered(message: Any) -> None:
    if message.inputs and "priority" in message.inputs[0].parameters:
        message.inputs[0].parameters["note"].string_param = "a"
    calls = remembered(message)
    assert calls.read(message.SerializeToString()) is None


def test_answers_are_those_of_the_message() -> None:
    calls, request = RepeatedCalls(), InferRequest("m", {})
    for value in (1, 2):
        outputs = {
            "y": np.full((2, 3), value, np.float32),
            "z": np.full((0, 3), value, np.int64),
            "t": np.full((3, 2), value, np.uint8).T,
            "b": np.full((1, 2), value == 1),
        }
        response = InferResponse("m", "1", outputs)
        expected = serialize_response(request, response, NumpyCore(), SharedMemoryRegions())
        found = calls.answers.write(response)
        assert found is not None and found[0] == expected


@pytest.mark.parametrize(
    "array",
    [np.array(["a"], object), np.ones(1 << 16, np.float32), np.ones(1, DATATYPES["BF16"]),
     np.ones(1, ">f4")],
)  # fmt: skip
def test_other_answers_are_left_to_the_message(array: Any) -> None:
    assert RepeatedCalls().answers.write(InferResponse("m", "1", {"y": array})) is None
