"""config_pbtxt: protobuf's text format as plain dictionaries, with line numbers in errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import OptionError
from onward.serving.models.config_pbtxt import parse_text, read_config

TRITON = """
# the quickstart model
name: "densenet_onnx"
platform: 'onnxruntime_onnx'
max_batch_size : 0
input [
  {
    name: "data_0"  data_type: TYPE_FP32, dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output < name: "fc6_1" dims: [1000]; label_filename: "labels" ".txt" >
version_policy: { all { }}
parameters { key: "a" value: { string_value: "1" } }
parameters { key: "b" value { string_value: "2" } }
dynamic_batching { }
"""


def test_a_config_of_triton_is_read() -> None:
    config = parse_text(TRITON)
    assert config["name"] == "densenet_onnx"
    assert config["input"] == [
        {
            "name": "data_0",
            "data_type": "TYPE_FP32",
            "dims": [3, 224, 224],
            "reshape": {"shape": [1, 3, 224, 224]},
        }
    ]
    assert config["output"]["label_filename"] == "labels.txt"
    assert config["version_policy"] == {"all": {}}
    assert [each["key"] for each in config["parameters"]] == ["a", "b"]
    assert config["dynamic_batching"] == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x: -1", -1), ("x: 0x1F", 31), ("x: 010", 8), ("x: 1.5e3", 1500.0), ("x: 2f", 2.0),
        ("x: .5", 0.5), ("x: - 7", -7), ("x: true", True), ("x: inf", float("inf")),
        ("x: KIND_CPU", "KIND_CPU"), (r'x: "a\n\"\x41\101\u00e9"', 'a\n"AAé'), ("x: []", []),
        ("x: [1, 2,]", [1, 2]), ("x: 1 x: 2 x: [3]", [1, 2, 3]), ("x: [1] x: [2]", [1, 2]),
        ("x { y: 1 } x { y: 2 }", [{"y": 1}, {"y": 2}]), ("x: 'it''s'", "its"),
        ("x: 1 # end", 1),
    ],
)  # fmt: skip
def test_values(text: str, value: object) -> None:
    assert parse_text(text) == {"x": value}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb 2", "m:2: expected ':' after 'b', found '2'"),
        ("a: 1\n\ninput {\n x: 1", "m:4: the '}' of the message in line 3 is missing"),
        ("a:", "m:1: expected a value of 'a', found the end of the file"),
        ("a: [1 2]", r"m:1: expected ',' or ']' in 'a', found '2'"),
        ('\na: "x', "m:2: a text without its closing quote is not protobuf text"),
        ("}", "m:1: expected the name of a field, found '}'"),
        ("a: 1\n$", r"m:2: '\$' is not protobuf text"),
        ("a {" * 200, "m:1: messages are nested more than 100 deep"),
        ("a: 1x", "m:1: '1x' is not protobuf text"),
        ("\na: " + "9" * 5000, "m:2: '9{39} is not a value"),
        (r'a: "\U00110000"', "m:1: .* is not a value"),
        (r'a: "\377"', "m:1: .* is not a value"),  # protobuf's texts are UTF-8
    ],
)
def test_errors_name_the_line(text: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        parse_text(text, "m")


@given(st.text(alphabet='ab {}<>[]:,;"\\1-#\n.', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_text(text)
    except OptionError as error:
        assert "config:" in str(error)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match=r"config\.pbtxt cannot be read"):
        read_config(path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text("max_batch_size: 4\n", "utf-8-sig")
    assert read_config(path) == {"max_batch_size": 4}
