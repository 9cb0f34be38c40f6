"""http_request: bodies become requests, or are refused with words."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import NotSupported, RequestInvalid, RequestTooLarge
from onward.serving.http.http_request import decompress, read_json_length, read_request
from onward.serving.requests import InferRequest, SequencePart, TensorSpec
from tests.serving.http_fakes import FakeRegions, floats

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def read(document: Any, tail: bytes = b"", **more: Any) -> tuple[InferRequest, bool]:
    head = document if isinstance(document, bytes) else orjson.dumps(document)
    return read_request("m", "", head + tail, len(head), **more)


def binary(array: Any = X, **changes: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "datatype": "FP32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
        **changes,
    }


def test_json_becomes_a_request() -> None:
    request, is_binary = read({"id": "7", "inputs": [floats([1, 2], [3, 4])]})
    assert (request.model, request.id, is_binary) == ("m", "7", False)
    assert request.inputs["x"].tolist() == [[1, 2], [3, 4]]


def test_binary_tensors_follow_the_json_in_order() -> None:
    second = binary(X + 1) | {"name": "z"}
    request, _ = read({"inputs": [binary(), second]}, X.tobytes() + (X + 1).tobytes())
    np.testing.assert_array_equal(request.inputs["x"], X)
    np.testing.assert_array_equal(request.inputs["z"], X + 1)


@pytest.mark.parametrize("shift", [0, 1])
def test_an_aligned_tensor_is_a_view_of_the_body_and_another_one_is_copied(shift: int) -> None:
    head = orjson.dumps({"inputs": [binary()]})
    start = -len(head) % 4 + shift
    buffer = np.zeros(start + len(head) + X.nbytes, np.uint8)
    buffer[start:] = np.frombuffer(head + X.tobytes(), np.uint8)
    array = read_request("m", "", buffer[start:].data, len(head))[0].inputs["x"]
    assert array.flags.aligned
    assert np.shares_memory(array, buffer) is (shift == 0)


def test_parameters_are_read() -> None:
    parameters = {
        "sequence_id": 5, "sequence_start": True, "priority": 2, "timeout": 1500,
        "binary_data_output": True, "mine": "a",
    }  # fmt: skip
    request, is_binary = read({"inputs": [floats([1])], "parameters": parameters})
    assert is_binary
    assert request.sequence == SequencePart(5, True, False)
    assert (request.priority, request.timeout) == (2, 0.0015)
    assert request.parameters == {"mine": "a"}
    assert read({"inputs": [], "parameters": {"sequence_id": ""}})[0].sequence is None


def test_outputs_are_read() -> None:
    outputs = [{"name": "y", "parameters": {"classification": 3, "binary_data": True}}]
    (output,) = read({"inputs": [floats([1])], "outputs": outputs})[0].outputs
    assert (output.name, output.classes, output.parameters["binary_data"]) == ("y", 3, True)


def test_inputs_are_read_from_shared_memory() -> None:
    regions = FakeRegions()
    regions.register("r", "/k", 0, 64)
    regions.write("r", 16, X.tobytes())
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 32, "shared_memory_offset": 16}
    request, _ = read({"inputs": [binary(parameters=place)]}, shared_memory=regions)
    np.testing.assert_array_equal(request.inputs["x"], X)
    with pytest.raises(NotSupported, match="no shared memory"):
        read({"inputs": [binary(parameters=place)]})


def test_a_raw_body_is_the_one_input() -> None:
    raw = X.tobytes()
    for shape, expected in [((-1, 4), (2, 4)), ((2, 4), (2, 4)), ((-1, -1), (1, 8))]:
        spec = TensorSpec("x", "FP32", shape)
        request, is_binary = read_request("m", "", raw, 0, raw_inputs=[spec])
        assert is_binary
        np.testing.assert_array_equal(request.inputs["x"], X.reshape(expected))
    text = TensorSpec("t", "BYTES", (-1, 1))
    assert read_request("m", "", b"ab", 0, raw_inputs=[text])[0].inputs["t"].tolist() == [[b"ab"]]


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ([], "must only have 1 input"),
        ([TensorSpec("x", "FP32", (-1,)), TensorSpec("z", "FP32", (-1,))], "got 2 inputs in 'm'"),
        ([TensorSpec("x", "FP32", (4, -1, -1))], "more than one variable-sized dimension"),
        ([TensorSpec("x", "FP32", (-1, 3))], "has 32 bytes, which is no multiple of 12"),
        ([TensorSpec("x", "FP32", (-1, 0))], "got 32 bytes, expected 0"),
        ([TensorSpec("x", "BYTES", (2,))], "must have input shape"),
    ],
)
def test_a_raw_body_that_does_not_fit_is_refused(specs: list[TensorSpec], text: str) -> None:
    with pytest.raises(RequestInvalid, match=text):
        read_request("m", "", X.tobytes(), 0, raw_inputs=specs)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"{", "failed to parse the request JSON buffer"),
        (b'{"inputs": [NaN]}', "send such tensors as binary data"),
        (b'"\xff"', "failed to parse"),
        (b"[" * 5000 + b"]" * 5000, "failed to parse"),
        (b"[]", "not a JSON object"),
        ({}, "Unable to parse 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs'"),
        ({"inputs": [1]}, "an input has no name"),
        ({"inputs": [{"name": 1}]}, "an input has no name"),
        ({"inputs": [], "id": 1}, "Unable to parse 'id'"),
        ({"inputs": [floats([1]), floats([1])]}, "input 'x' is given more than once"),
        ({"inputs": [floats([1]) | {"shape": [-1]}]}, "shape of input 'x'"),
        ({"inputs": [floats([1]) | {"shape": [3, 4]}]}, "got 1 elements, expected 12"),
        ({"inputs": [floats([1]) | {"datatype": 3}]}, "unknown datatype"),
        ({"inputs": [{"name": "x", "shape": [1], "data": [1]}]}, "input 'x' has no datatype"),
        ({"inputs": [floats([1]) | {"parameters": 3}]}, "Unable to parse 'parameters'"),
        ({"inputs": [floats([1]) | {"data": None}]}, "Unable to parse 'data'"),
        ({"inputs": [binary(data=[1])]}, "Unable to parse 'binary_data_size'"),
        ({"inputs": [binary(parameters={"binary_data_size": -1})]}, "'binary_data_size'"),
        ({"inputs": [binary(parameters={"binary_data_size": 33})]}, "only 32 bytes are left"),
        ({"inputs": [binary(parameters={"binary_data_size": 16})]}, "got 16 bytes, expected 32"),
        ({"inputs": []}, "unexpected additional input data for model 'm'"),
        ({"inputs": [binary()], "outputs": 1}, "Unable to parse 'outputs'"),
        ({"inputs": [binary()], "outputs": [{}]}, "an output has no name"),
        ({"inputs": [binary()], "outputs": [{"name": "y"}] * 2}, "asked for more than once"),
        ({"inputs": [binary()], "parameters": []}, "Unable to parse 'parameters'"),
        ({"inputs": [binary()], "parameters": {"a": []}}, "parameter 'a'"),
        ({"inputs": [binary()], "parameters": {"triton_a": 1}}, "reserved"),
        ({"inputs": [binary()], "parameters": {"timeout": -1}}, "Unable to parse 'timeout'"),
        ({"inputs": [binary()], "parameters": {"timeout": "1"}}, "Unable to parse 'timeout'"),
        ({"inputs": [binary()], "parameters": {"priority": 1.5}}, "Unable to parse 'priority'"),
        ({"inputs": [binary()], "parameters": {"sequence_id": -1}}, "'sequence_id'"),
        ({"inputs": [binary()], "parameters": {"sequence_id": "a" * 129}}, "'sequence_id'"),
        ({"inputs": [binary()], "parameters": {"sequence_start": 1}}, "'sequence_start'"),
        ({"inputs": [binary()], "parameters": {"binary_data_output": 1}}, "binary_data_output"),
    ],
)
def test_a_malformed_body_is_refused(document: Any, text: str) -> None:
    with pytest.raises(RequestInvalid, match=text):
        read(document, X.tobytes())


@pytest.mark.parametrize(
    "parameters",
    [{"classification": -1}, {"classification": "1"}, {"binary_data": 1},
     {"shared_memory_region": 1}, {"shared_memory_region": "r"},
     {"shared_memory_region": "r", "shared_memory_byte_size": -1},
     {"shared_memory_region": "r", "shared_memory_byte_size": 1, "classification": 1},
     {"shared_memory_region": "none", "shared_memory_byte_size": 1}],
)  # fmt: skip
def test_malformed_output_parameters_are_refused(parameters: dict[str, Any]) -> None:
    outputs = [{"name": "y", "parameters": parameters}]
    with pytest.raises(RequestInvalid):
        read({"inputs": [floats([1])], "outputs": outputs}, shared_memory=FakeRegions())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_KEYS = ["id", "parameters", "inputs", "outputs", "name", "shape", "datatype", "data"]


@pytest.mark.integration
@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(_KEYS), _JSON), st.dictionaries(st.sampled_from(_KEYS), _JSON)
)
def test_any_json_is_read_or_refused(document: dict[str, Any], tensor: dict[str, Any]) -> None:
    for body in (document, {**document, "inputs": [{"name": "x", **tensor}]}):
        try:
            read(body)
        except RequestInvalid:
            continue


def test_the_length_of_the_json_is_checked() -> None:
    assert read_json_length(None, 8) == 8
    assert read_json_length(b"3", 8) == 3
    for header in (b"9", b"-1", b"x", b"", b"9" * 40):
        with pytest.raises(RequestInvalid, match="Inference-Header-Content-Length"):
            read_json_length(header, 8)
    with pytest.raises(RequestInvalid, match="The document is empty"):
        read_json_length(None, 0)


def test_compressed_bodies_are_unpacked_up_to_a_limit() -> None:
    data = bytes(1000)
    assert decompress(gzip.compress(data), b"gzip", 1000) == data
    assert decompress(zlib.compress(data), b"Deflate", 1000) == data
    with pytest.raises(RequestTooLarge, match="more than 999 bytes"):
        decompress(gzip.compress(data), b"gzip", 999)
    for body, encoding, text in [
        (data, b"gzip", "is not gzip"),
        (gzip.compress(data)[:-4], b"gzip", "cut off"),
        (gzip.compress(data[:9]) + gzip.compress(data[9:]), b"gzip", "bytes after its end"),
        (zlib.compress(data) + b"1234", b"deflate", "has 4 bytes after its end"),
        (data, b"br", "Unsupported compression type 'br'"),
    ]:
        with pytest.raises(RequestInvalid, match=text):
            decompress(body, encoding, 1000)
