"""InferResponse to ModelInferResponse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import RequestInvalid
from onward.serving.grpc.grpc_messages import message_class
from onward.serving.grpc.grpc_response import (
    serialize_response,
    serialize_stream_error,
    serialize_stream_response,
)
from onward.serving.requests import InferRequest, InferResponse, RequestedOutput
from onward.serving.shared_memory import SharedMemoryRegions
from onward.serving.tensor_data import DATATYPES, from_raw
from tests.serving.numpy_core import NumpyCore

Response = message_class("inference.ModelInferResponse")
StreamResponse = message_class("inference.ModelStreamInferResponse")


def serialized(outputs: dict[str, Any], *asked: RequestedOutput, **options: Any) -> bytes:
    request = InferRequest("classifier", {}, id="7", outputs=asked)
    response = InferResponse("classifier", "1", outputs)
    memory = options.pop("memory", SharedMemoryRegions())
    return serialize_response(request, response, NumpyCore(), memory, **options)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_outputs_of_each_datatype(datatype: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(DATATYPES[datatype]).T
    if datatype == "BYTES":
        array = np.array([[b"a", b"\xff"], [b"", b"long" * 100]], object)
    message = Response.FromString(serialized({"y": array}))
    assert (message.model_name, message.model_version, message.id) == ("classifier", "1", "7")
    [tensor], [raw] = message.outputs, message.raw_output_contents
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("y", datatype, [2, 2])
    found = from_raw("y", datatype, (2, 2), raw)
    assert found.tolist() == array.tolist()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 3_000_000])
def test_lengths_on_the_wire(size: int) -> None:
    array = np.arange(size, dtype=np.uint32).astype(np.uint8)
    message = Response.FromString(serialized({"a": array, "b": array[:5]}))
    assert message.raw_output_contents[0] == array.tobytes()
    assert message.raw_output_contents[1] == array[:5].tobytes()
    stream = StreamResponse.FromString(serialize_stream_response(message.SerializeToString()))
    assert stream.infer_response == message


def test_parameters_are_sent() -> None:
    message = Response.FromString(serialized({}, parameters={"triton_final_response": True}))
    assert message.parameters["triton_final_response"].bool_param


def test_a_classified_output_has_labels() -> None:
    scores = np.array([[0.25, 0.5, 0.25]], np.float32)
    message = Response.FromString(serialized({"scores": scores}, RequestedOutput("scores", 2)))
    assert (message.outputs[0].datatype, list(message.outputs[0].shape)) == ("BYTES", [1, 2])
    found = from_raw("y", "BYTES", (1, 2), message.raw_output_contents[0])
    assert found.tolist() == [[b"0.500000:1:dog", b"0.250000:0:cat"]]


def test_an_output_in_shared_memory_leaves_its_place_empty(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(bytes(32))
    memory = SharedMemoryRegions(tmp_path)
    memory.register("r", "k", 8, 24)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_offset": 4}
    asked = RequestedOutput("a", parameters=place)
    outputs = {"a": np.array([1, 2], np.int64), "b": np.array([3], np.int8)}
    message = Response.FromString(serialized(outputs, asked, RequestedOutput("b"), memory=memory))
    assert list(message.raw_output_contents) == [b"", b"\3"]
    assert message.outputs[0].parameters["shared_memory_byte_size"].int64_param == 16
    assert message.outputs[0].parameters["shared_memory_offset"].int64_param == 4
    assert (tmp_path / "k").read_bytes()[12:28] == outputs["a"].tobytes()
    outputs["a"] = np.arange(3)
    with pytest.raises(RequestInvalid, match=r"output 'a' \(16 bytes\) should be at least 24"):
        serialized(outputs, asked, memory=memory)


def test_an_error_of_a_stream_names_its_request() -> None:
    message = StreamResponse.FromString(serialize_stream_error("7", RequestInvalid("wrong")))
    assert (message.error_message, message.infer_response.id) == ("wrong", "7")
    message = StreamResponse.FromString(serialize_stream_error("", KeyError()))
    assert message.error_message == "KeyError"


def test_elements_are_sent_too_if_the_client_sent_elements() -> None:
    texts = np.array(["é", b"\xff"], object)
    outputs = {"a": np.array([[1.5], [2.0]], np.float32), "b": texts, "c": np.ones(1, np.float16)}
    message = Response.FromString(serialized(outputs, typed=True))
    a, b, c = message.outputs
    assert list(a.contents.fp32_contents) == [1.5, 2.0]
    assert list(b.contents.bytes_contents) == ["é".encode(), b"\xff"]
    assert not c.HasField("contents")
    assert len(message.raw_output_contents) == 3
