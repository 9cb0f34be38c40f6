"""ModelInferRequest to InferRequest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onward.errors import RequestInvalid
from onward.serving.grpc.grpc_request import parse_request
from onward.serving.requests import InferRequest, SequencePart
from onward.serving.shared_memory import SharedMemoryRegions
from onward.serving.tensor_data import DATATYPES, to_raw
from tests.serving.grpc_client import InferRequestMessage, infer_message


def parse(message: Any, shared_memory: SharedMemoryRegions | None = None) -> InferRequest:
    """Parse after a round trip through the wire."""
    copy = InferRequestMessage.FromString(message.SerializeToString())
    return parse_request(copy, shared_memory or SharedMemoryRegions())


def typed(datatype: str, shape: list[int], **contents: Any) -> Any:
    message = InferRequestMessage(model_name="m")
    message.inputs.add(name="x", datatype=datatype, shape=shape, contents=contents)
    return message


@pytest.mark.parametrize("datatype", [each for each in DATATYPES if each != "BYTES"])
def test_raw_contents_of_each_datatype(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(DATATYPES[datatype])
    message = infer_message("m", {"x": (datatype, [2, 3], array.tobytes())})
    found = parse(message).inputs["x"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_raw_bytes_elements() -> None:
    array = np.array([b"", b"\xff\0"], object)
    found = parse(infer_message("m", {"x": ("BYTES", [2, 1], bytes(to_raw(array)))})).inputs["x"]
    assert found.tolist() == [[b""], [b"\xff\0"]]


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(1 << 31), 7]),
        ("INT64", "int64_contents", [-(1 << 63), 7]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", [0, (1 << 64) - 1]),
        ("FP16", "fp32_contents", [0.5, -2.0]),
        ("BF16", "fp32_contents", [0.5, -2.0]),
        ("FP32", "fp32_contents", [0.5, -2.0]),
        ("FP64", "fp64_contents", [0.1, -2.0]),
    ],
)
def test_typed_contents_of_each_datatype(datatype: str, field: str, values: list[Any]) -> None:
    found = parse(typed(datatype, [1, 2], **{field: values})).inputs["x"]
    assert found.dtype == DATATYPES[datatype]
    np.testing.assert_array_equal(found, np.array([values], DATATYPES[datatype]))


def test_typed_bytes() -> None:
    found = parse(typed("BYTES", [2], bytes_contents=[b"a", b"\xff"])).inputs["x"]
    assert found.tolist() == [b"a", b"\xff"]
    assert found.dtype == object


def test_halves_keep_infinity() -> None:
    assert np.isinf(parse(typed("FP16", [1], fp32_contents=[np.inf])).inputs["x"]).all()
    assert parse(typed("BF16", [1], fp32_contents=[3.0])).inputs["x"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (typed("INT8", [1], int_contents=[128]), "an element that is not INT8"),
        (typed("FP16", [1], fp32_contents=[1e9]), r"1e\+09 is out of the range of FP16"),
        (typed("BF16", [1], fp32_contents=[-3.4e38]), r"e\+38 is out of the range of BF16"),
        (typed("UINT8", [1], uint_contents=[256]), "an element that is not UINT8"),
        (typed("FP32", [1], int_contents=[1]), "belong in fp32_contents, not in int_contents"),
        (typed("FP32", [2], fp32_contents=[1.0]), "got 1 elements, expected 2"),
        (typed("FP8", [1], fp32_contents=[1.0]), "unknown datatype 'FP8'"),
        (typed("FP32", [-1], fp32_contents=[1.0]), "size -1"),
        (infer_message("m", {"x": ("FP32", [2], b"1234")}), "got 4 bytes, expected 8"),
        (InferRequestMessage(raw_input_contents=[b"a"]), "expected 0 raw_input_contents"),
    ],
)
def test_tensors_that_contradict_themselves_are_refused(message: Any, text: str) -> None:
    with pytest.raises(RequestInvalid, match=text):
        parse(message)


def test_raw_and_typed_contents_are_not_mixed() -> None:
    message = typed("FP32", [1], fp32_contents=[1.0])
    message.raw_input_contents.append(b"1234")
    with pytest.raises(RequestInvalid, match="contents field must not be specified"):
        parse(message)


def test_an_input_without_data_is_refused_unless_it_is_empty() -> None:
    message = InferRequestMessage(model_name="m")
    message.inputs.add(name="x", datatype="FP32", shape=[2, 0])
    assert parse(message).inputs["x"].shape == (2, 0)
    message.inputs.add(name="y", datatype="FP32", shape=[1])
    with pytest.raises(RequestInvalid, match="unable to find data for input tensor 'y'"):
        parse(message)


def test_an_input_is_given_once() -> None:
    message = infer_message("m", {"x": ("FP32", [1], b"1234")})
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    message.raw_input_contents.append(b"1234")
    with pytest.raises(RequestInvalid, match="input 'x' is given twice"):
        parse(message)


def test_parameters_of_the_protocol_become_fields() -> None:
    message = infer_message("m", {}, id="7", model_version="3")
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].int64_param = 1500
    message.parameters["sequence_id"].int64_param = 9
    message.parameters["sequence_start"].bool_param = True
    message.parameters["sequence_end"].bool_param = False
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["own"].double_param = 0.5
    found = parse(message)
    assert (found.model, found.id, found.version) == ("m", "7", "3")
    assert (found.priority, found.timeout) == (2, 0.0015)
    assert found.sequence == SequencePart(9, is_start=True)
    assert found.parameters == {"own": 0.5}


def test_a_timeout_of_0_is_the_models_own() -> None:
    message = infer_message("m", {})
    message.parameters["timeout"].int64_param = 0
    message.parameters["sequence_id"].string_param = "a"
    message.parameters["priority"].string_param = "3"
    found = parse(message)
    assert found.timeout is None
    assert found.sequence == SequencePart("a")
    assert found.priority == 3


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("priority", "string_param", "first"),
        ("priority", "string_param", "9" * 21),
        ("timeout", "string_param", "9" * 5000),
        ("timeout", "string_param", "\u0663"),  # a digit, but not of ASCII
        ("priority", "int64_param", -1),
        ("timeout", "bool_param", True),
        ("timeout", "double_param", 0.5),
        ("sequence_start", "int64_param", 1),
        ("sequence_id", "double_param", 1.0),
        ("sequence_id", "string_param", "a" * 129),
    ],
)
def test_a_parameter_of_another_type_is_refused(name: str, field: str, value: Any) -> None:
    message = infer_message("m", {})
    setattr(message.parameters[name], field, value)
    with pytest.raises(RequestInvalid, match=f"parameter '{name}' must be"):
        parse(message)


def test_requested_outputs() -> None:
    message = infer_message("m", {})
    message.outputs.add(name="a")
    message.outputs.add(name="b").parameters["classification"].int64_param = 3
    a, b = parse(message).outputs
    assert (a.name, a.classes, b.name, b.classes) == ("a", 0, "b", 3)
    message.outputs[1].parameters["classification"].int64_param = -3
    with pytest.raises(RequestInvalid, match="classification must be"):
        parse(message)


@pytest.fixture
def regions(tmp_path: Path) -> SharedMemoryRegions:
    (tmp_path / "data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    found = SharedMemoryRegions(tmp_path)
    found.register("r", "data", 0, 16)
    return found


def in_region(parameters: Any, region: Any, size: Any, offset: Any = None) -> None:
    for name, value in (("region", region), ("byte_size", size), ("offset", offset)):
        if value is not None:
            field = "string_param" if isinstance(value, str) else "int64_param"
            setattr(parameters[f"shared_memory_{name}"], field, value)


def test_inputs_in_shared_memory_take_no_raw_contents(regions: SharedMemoryRegions) -> None:
    message = InferRequestMessage(model_name="m", raw_input_contents=[b"\1"])
    shared = message.inputs.add(name="x", datatype="FP32", shape=[2])
    in_region(shared.parameters, "r", 8, 4)
    message.inputs.add(name="y", datatype="INT8", shape=[1])
    found = parse(message, regions).inputs
    assert found["x"].tolist() == [1.0, 2.0]
    assert found["y"].tolist() == [1]


@pytest.mark.parametrize(
    ("region", "size", "offset", "text"),
    [
        ("r", 12, 8, "Invalid offset"),
        ("other", 8, 0, "Unable to find shared memory region: 'other'"),
        ("r", None, 0, "must be integers"),
        ("r", "8", 0, "must be integers"),
        (7, 8, 0, "not the name of a region"),
        ("r", 4, 0, "got 4 bytes, expected 8"),
    ],
)
def test_an_input_outside_of_its_region_is_refused(
    regions: SharedMemoryRegions, region: Any, size: Any, offset: int, text: str
) -> None:
    message = InferRequestMessage(model_name="m")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[2])
    in_region(tensor.parameters, region, size, offset)
    with pytest.raises(RequestInvalid, match=text):
        parse(message, regions)


def test_an_output_outside_of_its_region_is_refused_before_it_runs(
    regions: SharedMemoryRegions,
) -> None:
    message = InferRequestMessage(model_name="m")
    output = message.outputs.add(name="y")
    in_region(output.parameters, "r", 8, 8)
    assert parse(message, regions).outputs[0].parameters["shared_memory_byte_size"] == 8
    output.parameters["classification"].int64_param = 1
    with pytest.raises(RequestInvalid, match="can't be set on classification"):
        parse(message, regions)
    del output.parameters["classification"]
    in_region(output.parameters, "r", 9, 8)
    with pytest.raises(RequestInvalid, match="Invalid offset"):
        parse(message, regions)


def test_parameters_with_tritons_prefix_are_reserved() -> None:
    message = InferRequestMessage(model_name="m")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    assert parse(message).parameters == {}
    message.parameters["triton_note"].string_param = "a"
    with pytest.raises(RequestInvalid, match="starting with 'triton_' are reserved"):
        parse(message)
