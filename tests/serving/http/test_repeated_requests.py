"""repeated_requests: what is remembered gives the same as what is read and written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from onward.serving.http.http_request import read_request
from onward.serving.http.http_response import write_outputs
from onward.serving.http.repeated_requests import RepeatedRequests
from onward.serving.requests import InferRequest, InferResponse

X = np.arange(6, dtype=np.float32).reshape(2, 3)
N = np.array([7, 8], np.int64)


def body(x: Any = X, **more: Any) -> tuple[bytes, int]:
    tensors = {"x": x, "n": N}
    names = {"float32": "FP32", "int64": "INT64", "bool": "BOOL"}
    inputs = [
        {
            "name": name,
            "shape": each.shape,
            "datatype": names[each.dtype.name],
            "parameters": {"binary_data_size": each.nbytes},
        }
        for name, each in tensors.items()
    ]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}, **more})
    return head + b"".join(each.tobytes() for each in tensors.values()), len(head)


def remembered(data: bytes, length: int) -> RepeatedRequests:
    repeated = RepeatedRequests()
    assert repeated.read("m", "1", data, length) is None
    repeated.remember(data, length, *read_request("m", "1", data, length))
    return repeated


@pytest.mark.parametrize("padding", range(8))
def test_a_repeated_request_has_its_own_tensors(padding: int) -> None:
    more = {"outputs": [{"name": "y"}], "note": " " * padding}  # moves the tensors in memory
    repeated = remembered(*body(**more))
    data, length = body(X + 1, **more)
    found = repeated.read("m", "1", memoryview(data), length)
    expected = read_request("m", "1", data, length)
    assert found is not None and found[1] is expected[1] is True
    request = found[0]
    assert list(request.inputs) == ["x", "n"] and request.outputs == expected[0].outputs
    for name, array in request.inputs.items():
        np.testing.assert_array_equal(array, expected[0].inputs[name])
        assert array.flags.aligned and array.dtype == expected[0].inputs[name].dtype


def test_a_body_of_another_size_is_read_again() -> None:
    data, length = body()
    repeated = remembered(data, length)
    assert repeated.read("m", "1", data[:-1], length) is None
    assert repeated.read("m", "1", data + b"x", length) is None
    assert repeated.read("m", "1", data[:length], length) is None


@pytest.mark.parametrize(
    "more",
    [
        {"id": "7"},
        {"parameters": {"sequence_id": 3}},
        {"parameters": {"binary_data_output": True}, "note": "x" * 5000},
    ],
)
def test_some_requests_are_not_remembered(more: dict[str, Any]) -> None:
    data, length = body(**more)
    assert remembered(data, length).read("m", "1", data, length) is None


def test_booleans_are_checked_each_time() -> None:
    data, length = body(np.array([True, False]))
    assert remembered(data, length).read("m", "1", data, length) is None


def test_what_is_remembered_is_bounded() -> None:
    repeated = RepeatedRequests()
    for n in range(300):
        data, length = body(note=str(n))
        repeated.remember(data, length, *read_request("m", "1", data, length))
    assert len(repeated._requests) == 256


def test_answers_equal_those_written_again() -> None:
    repeated, request = RepeatedRequests(), InferRequest("m", {})
    for shift in (0, 1):
        for outputs in ({"y": X + shift}, {"y": X[:1] + shift, "n": N}, {"y": X.T + shift}):
            response = InferResponse("m", "1", outputs)
            expected = write_outputs(request, response, True, lambda *_: [])
            assert repeated.write(request, response, True) == expected


def test_other_answers_are_not_written() -> None:
    repeated, response = RepeatedRequests(), InferResponse("m", "1", {"y": X})
    assert repeated.write(InferRequest("m", {}), response, False) is None
    assert repeated.write(InferRequest("m", {}, id="1"), response, True) is None
    swapped = InferResponse("m", "1", {"y": X.astype(">f4")})
    assert repeated.write(InferRequest("m", {}), swapped, True) is None
    text = InferResponse("m", "1", {"y": np.array(["a"], object)})
    assert repeated.write(InferRequest("m", {}), text, True) is None
