"""http_response: outputs as JSON or binary, errors as status and text."""

from __future__ import annotations

import gzip
import logging
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest

from onward.errors import FeedError, ModelNotFound, RequestInvalid, ServerOverloaded, WorkerDied
from onward.serving.http.http_response import (
    choose_encoding,
    compress,
    count_json_elements,
    describe_error,
    error_body,
    error_headers,
    write_answer,
    write_outputs,
)
from onward.serving.requests import InferRequest, InferResponse, RequestedOutput
from onward.serving.tensor_data import DATATYPES
from tests.serving.http_fakes import FakeRegions

Y = np.array([[1.5, -2.0]], np.float32)


def write(
    outputs: dict[str, Any], *asked: RequestedOutput, is_binary: bool = False, **more: Any
) -> tuple[dict[str, Any], bytes]:
    request = InferRequest("m", {}, id="7", outputs=asked)
    response = InferResponse("m", "1", outputs)
    body, length = write_outputs(request, response, is_binary, lambda *of: ["ant", "bee"], **more)
    return orjson.loads(body[:length]), body[length:] if length is not None else b""


def test_outputs_are_json_by_default() -> None:
    document, tail = write({"y": Y})
    assert tail == b""
    assert document == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]}],
    }


def test_binary_outputs_follow_the_json() -> None:
    asked = [
        RequestedOutput("b", parameters={"binary_data": False}),
        RequestedOutput("a"),
    ]
    document, tail = write({"a": Y, "b": Y}, *asked, is_binary=True)
    assert [each["name"] for each in document["outputs"]] == ["b", "a"]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 8}
    assert tail == Y.tobytes()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_all_datatypes_are_written_as_json(datatype: str) -> None:
    array = np.array([[0, 1]]).astype(DATATYPES[datatype])
    if datatype == "BYTES":
        array = np.array([[b"0", "1"]], object)
    (output,) = write({"y": array})[0]["outputs"]
    assert output["datatype"] == datatype
    assert [float(each) for each in output["data"]] == [0, 1]


def test_json_has_null_for_nan_and_infinity() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        array = np.array([np.nan, np.inf, 1]).astype(dtype)
        assert write({"y": array})[0]["outputs"][0]["data"] == [None, None, 1]


def test_transposed_outputs_are_written_in_their_order() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3).T
    document, _ = write({"y": array})
    assert document["outputs"][0]["data"] == [0, 3, 1, 4, 2, 5]
    _, tail = write({"y": array}, is_binary=True)
    assert np.frombuffer(tail, np.int64).tolist() == [0, 3, 1, 4, 2, 5]


def test_classes_are_written_as_texts() -> None:
    document, _ = write({"y": Y}, RequestedOutput("y", classes=1))
    assert document["outputs"] == [
        {"name": "y", "datatype": "BYTES", "shape": [1, 1], "data": ["1.500000:0:ant"]}
    ]


def test_outputs_are_written_to_shared_memory() -> None:
    regions = FakeRegions()
    regions.register("r", "/k", 0, 64)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_offset": 4}
    document, tail = write({"y": Y}, RequestedOutput("y", parameters=place), shared_memory=regions)
    assert tail == b""
    assert document["outputs"][0]["parameters"] == place | {"shared_memory_byte_size": 8}
    assert regions.regions["r"][4:12] == Y.tobytes()
    place["shared_memory_byte_size"] = 7
    with pytest.raises(RequestInvalid, match="should be at least 8 bytes"):
        write({"y": Y}, RequestedOutput("y", parameters=place), shared_memory=regions)


def test_an_output_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="unexpected inference output 'z' for model 'm'"):
        write({"y": Y}, RequestedOutput("z"))


def test_elements_of_json_outputs_are_counted() -> None:
    response = InferResponse("m", "1", {"a": Y, "b": Y})
    asked = (RequestedOutput("a", parameters={"binary_data": True}), RequestedOutput("b"))
    assert count_json_elements(InferRequest("m", {}), response, False) == 4
    assert count_json_elements(InferRequest("m", {}), response, True) == 0
    assert count_json_elements(InferRequest("m", {}, outputs=asked), response, False) == 2


def test_errors_have_a_status_and_a_text(caplog: pytest.LogCaptureFixture) -> None:
    assert describe_error(ModelNotFound("no m")) == (404, "no m", None)
    assert describe_error(ServerOverloaded("full", retry_after=2)) == (503, "full", 2)
    assert describe_error(FeedError("wrong"))[0] == 400
    assert describe_error(WorkerDied("gone"))[0] == 503
    assert not caplog.records
    with caplog.at_level(logging.ERROR, "onward.serving"):
        status, text, _ = describe_error(KeyError("secret"))
    assert (status, text) == (500, "internal error of the server: KeyError")
    assert "secret" in caplog.text
    assert orjson.loads(error_body("a\ud800b")) == {"error": "a?b"}


def test_error_headers() -> None:
    assert error_headers(503, 0.2) == b"Retry-After: 1\r\n"
    assert b"WWW-Authenticate: Bearer" in error_headers(401, None)


def test_an_answer_is_http() -> None:
    assert write_answer(404, b"{}", extra=b"A: b\r\n", keep_alive=False) == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"A: b\r\nConnection: close\r\n\r\n{}"
    )


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (None, None), (b"gzip", b"gzip"), (b"Deflate", b"deflate"), (b"identity", None),
        (b"gzip, identity", b"gzip"), (b"gzip;q=0.5", b"gzip"), (b"gzip;q=0", None),
        (b"gzip, deflate", None), (b"gzip, deflate, br", None), (b"br", None), (b"*", None),
    ],
)  # fmt: skip
def test_only_an_explicit_encoding_compresses(header: bytes | None, encoding: bytes | None) -> None:
    assert choose_encoding(header) == encoding


def test_compressed_answers_are_unpacked_by_the_standard_library() -> None:
    assert gzip.decompress(compress(b"abc", b"gzip")) == b"abc"
    assert zlib.decompress(compress(b"abc", b"deflate")) == b"abc"
