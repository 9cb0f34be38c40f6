"""client_protocol: requests in bytes, responses as arrays, errors as classes."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from onward import errors
from onward.serving.client import client_protocol as protocol
from onward.serving.client.client_protocol import HttpResponse, InferOptions


def parse(request: protocol.HttpRequest) -> tuple[dict[str, Any], bytes]:
    length = int(dict(request.headers)["Inference-Header-Content-Length"])
    body = b"".join(request.body)
    return json.loads(body[:length]), body[length:]


def test_a_request_has_json_then_binary_tensors() -> None:
    inputs = {"x": np.array([[1, 2]], np.float32), "t": np.array(["é", b"\xff"], object)}
    options = InferOptions("r1", 2, True, parameters={"beam": 3})
    call = protocol.infer("a/b", inputs, ["y"], "2", options)
    request = call.make(1.5)
    assert (request.method, request.path) == ("POST", "/v2/models/a%2Fb/versions/2/infer")
    header, data = parse(request)
    assert header == {
        "id": "r1",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 2],
             "parameters": {"binary_data_size": 8}},
            {"name": "t", "datatype": "BYTES", "shape": [2],
             "parameters": {"binary_data_size": 11}},
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {
            "binary_data_output": True, "beam": 3, "priority": 2, "timeout": 1_500_000,
        },
    }  # fmt: skip
    assert data[:8] == np.array([1, 2], "<f4").tobytes()
    assert data[8:] == b"\x02\0\0\0" + "é".encode() + b"\x01\0\0\0\xff"
    assert call.may_repeat


def test_a_part_of_a_sequence_may_not_be_repeated() -> None:
    options = InferOptions(sequence_id=7, sequence_start=True)
    call = protocol.infer("m", {"x": np.zeros(1)}, options=options)
    header, _ = parse(call.make(None))
    assert header["parameters"] == {
        "binary_data_output": True, "sequence_id": 7, "sequence_start": True, "sequence_end": False,
    }  # fmt: skip
    assert not call.may_repeat


def test_big_endian_arrays_are_sent_little_endian() -> None:
    call = protocol.infer("m", {"x": np.array([1.0], ">f8")})
    header, data = parse(call.make(None))
    assert header["inputs"][0]["datatype"] == "FP64"
    assert data == np.array([1.0], "<f8").tobytes()


def test_binary_and_json_outputs_are_read() -> None:
    header = json.dumps({
        "outputs": [
            {"name": "a", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
            {"name": "b", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1]},
            {"name": "c", "datatype": "BYTES", "shape": [1],
             "parameters": {"binary_data_size": 5}},
        ]
    }).encode()  # fmt: skip
    body = header + np.array([3, 4], "<i4").tobytes() + b"\x01\0\0\0z"
    found = protocol.read_outputs(
        HttpResponse(200, {"inference-header-content-length": str(len(header))}, bytearray(body))
    )
    assert found["a"].tolist() == [3, 4] and found["a"].dtype == np.int32
    assert found["b"].tolist() == [[0.5, 1.0]]
    assert found["c"].tolist() == [b"z"]
    found["a"][0] = 5  # an array of the caller's own


@pytest.mark.parametrize(
    "body",
    [b"not json", b"{}", b'{"outputs": [{"name": "a"}]}', b'{"outputs": 3}',
     b'{"outputs": [{"name": "a", "datatype": "FP32", "shape": [2], "data": [1]}]}',
     b'{"outputs": [{"name": "a", "datatype": "FP32", "shape": [2], '
     b'"parameters": {"binary_data_size": 8}}]}'],
)  # fmt: skip
def test_a_malformed_response_is_named(body: bytes) -> None:
    with pytest.raises(errors.ServingError, match="the server's response is malformed"):
        protocol.read_outputs(HttpResponse(200, {}, body))


@pytest.mark.parametrize(
    ("status", "text", "headers", "kind"),
    [
        (400, "wrong shape", {}, errors.RequestInvalid),
        (401, "no key", {}, errors.AccessDenied),
        (404, "no model", {}, errors.ModelNotFound),
        (413, "too large", {}, errors.RequestTooLarge),
        (429, "slow down", {"retry-after": "3"}, errors.QuotaExceeded),
        (500, "oh", {}, errors.ServingError),
        (501, "no trace", {}, errors.NotSupported),
        (503, "model is being loaded", {}, errors.ModelUnavailable),
        (503, "too many wait", {"retry-after": "1"}, errors.ServerOverloaded),
        (503, "it stopped", {"retry-after": "1"}, errors.ModelUnavailable),
        (503, "?", {"retry-after": "1", "onward-error": "RequestExpired"}, errors.RequestExpired),
        (503, "?", {"retry-after": "1", "onward-error": "OSError"}, errors.ModelUnavailable),
        (503, "its deadline passed", {}, errors.RequestExpired),
    ],
)
def test_errors_are_the_servers_classes(
    status: int, text: str, headers: dict[str, str], kind: type[errors.ServingError]
) -> None:
    response = HttpResponse(status, headers, json.dumps({"error": text}).encode())
    with pytest.raises(errors.ServingError, match=re.escape(text)) as caught:
        protocol.check(response)
    assert type(caught.value) is kind
    assert caught.value.retry_after == (float(headers["retry-after"]) if headers else None)


def test_an_error_without_json_keeps_its_text() -> None:
    with pytest.raises(errors.ServingError, match="Bad Gateway"):
        protocol.check(HttpResponse(502, {}, b"<h1>Bad Gateway</h1>"))
    with pytest.raises(errors.ServingError, match="status 502"):
        protocol.check(HttpResponse(502, {}, b""))


def test_lists_get_the_models_types() -> None:
    found = protocol.to_arrays({"x": [1, 2], "y": np.zeros(1, np.int8)}, {"x": "FP32", "y": "FP32"})
    assert found["x"].dtype == np.float32 and found["y"].dtype == np.int8
    with pytest.raises(errors.RequestInvalid, match=r"input 'x' takes INT64, which \['a'\] is not"):
        protocol.to_arrays({"x": ["a"]}, {"x": "INT64"})


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        ("INT64", [1.5], r"takes INT64, which \[1.5\] is not"),
        ("INT64", [float("nan")], r"takes INT64, which \[nan\] is not"),
        ("INT8", [300], r"takes INT8, which \[300\] is not"),
        ("FP16", [70000], "70000.0 is out of the range of FP16"),
        ("FP32", 1e39, r"1e\+39 is out of the range of FP32"),
        ("FP32", [None], r"takes FP32, which \[None\] is not"),
        ("FP32", ["1.5"], "takes FP32, which"),
    ],
)
def test_lists_that_the_models_type_would_change_are_refused(
    datatype: str, value: Any, text: str
) -> None:
    with pytest.raises(errors.RequestInvalid, match=f"input 'x'.*{text}"):
        protocol.to_arrays({"x": value}, {"x": datatype})


def test_lists_of_floats_that_are_integers_and_of_mixed_texts_are_taken() -> None:
    assert protocol.to_arrays({"x": [2.0]}, {"x": "INT64"})["x"].tolist() == [2]
    assert protocol.to_arrays({"x": ["ä", b"\xff"]}, {"x": "BYTES"})["x"].tolist() == ["ä", b"\xff"]


def test_routes() -> None:
    def path(call: protocol.ClientCall[Any]) -> str:
        request = call.make(None)
        return f"{request.method} {request.path}"

    assert path(protocol.metadata()) == "GET /v2"
    assert path(protocol.metadata("m", "1")) == "GET /v2/models/m/versions/1"
    assert path(protocol.config("m")) == "GET /v2/models/m/config"
    assert path(protocol.statistics()) == "GET /v2/models/stats"
    assert path(protocol.statistics("m")) == "GET /v2/models/m/stats"
    assert path(protocol.ready()) == "GET /v2/health/ready"
    assert path(protocol.ready("m")) == "GET /v2/models/m/ready"
    assert path(protocol.models()) == "POST /v2/repository/index"
    assert path(protocol.unload("m")) == "POST /v2/repository/models/m/unload"
    request = protocol.load("m", {"max_batch_size": 4}, {"1/model.onnx": b"\x00"}).make(None)
    assert request.path == "/v2/repository/models/m/load"
    assert json.loads(b"".join(request.body)) == {
        "parameters": {"config": '{"max_batch_size": 4}', "file:1/model.onnx": "AA=="}
    }
