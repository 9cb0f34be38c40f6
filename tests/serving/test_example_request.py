"""Example requests: their bodies are valid for the signatures that they are made from."""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onward.serving.example_request import example_arrays, example_body, example_command
from onward.serving.requests import TensorSpec
from onward.serving.tensor_data import check_shape, dtype_of, from_json
from tests.serving.signatures import SIGNATURES

URL = "http://127.0.0.1:8000/v2/models/it's/infer"
CASES = pytest.mark.parametrize("inputs", SIGNATURES.values(), ids=SIGNATURES)


def check_body(body: dict[str, Any], inputs: list[TensorSpec]) -> None:
    needed = [spec for spec in inputs if not spec.is_optional]
    assert [each["name"] for each in body["inputs"]] == [spec.name for spec in needed]
    for spec, each in zip(needed, body["inputs"]):
        assert each["datatype"] == spec.datatype
        shape = check_shape(spec.name, each["shape"])
        array = from_json(spec.name, each["datatype"], shape, each["data"])
        assert len(shape) == len(spec.shape)
        assert all(size in (want, 1) for size, want in zip(array.shape, spec.shape))


@CASES
def test_body_fits_the_signature(inputs: list[TensorSpec]) -> None:
    check_body(json.loads(json.dumps(example_body(inputs))), inputs)


@CASES
def test_command_sends_a_valid_body(inputs: list[TensorSpec]) -> None:
    command = example_command(URL, inputs)
    assert len(command) < 1500
    words = shlex.split(command)
    assert words[words.index("curl") + 1] == URL
    if words[0] == "curl":
        body = words[words.index("-d") + 1]
    else:  # the shell runs what makes the body
        made, _, rest = command.partition(" | curl ")
        assert rest.endswith("--data-binary @-") and made.startswith("python3 -c ")
        own = [sys.executable, "-c", shlex.split(made)[2]]
        body = subprocess.run(own, capture_output=True, text=True, check=True).stdout
    check_body(json.loads(body), inputs)


def test_the_example_of_a_file_is_a_picture() -> None:
    image = pytest.importorskip("PIL.Image")
    [given] = example_body(SIGNATURES["files"])["inputs"]
    data = from_json("image", "BYTES", (1,), given["data"])[0]
    assert image.open(io.BytesIO(data)).size == (1, 1)
    [(_, _, expression)] = example_arrays(SIGNATURES["files"])
    assert eval(expression, {"np": np, "base64": base64}).tolist() == [data]


@pytest.mark.parametrize("name", ["small", "image"])
def test_the_example_of_a_sequence_is_a_whole_one(name: str) -> None:
    command = example_command(URL, SIGNATURES[name], keeps_sequences=True)
    words = shlex.split(command)
    if words[0] == "curl":
        body = words[words.index("-d") + 1]
    else:
        own = [sys.executable, "-c", words[2]]
        body = subprocess.run(own, capture_output=True, text=True, check=True).stdout
    expected = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    assert json.loads(body)["parameters"] == expected


def test_large_inputs_are_not_written_out() -> None:
    assert example_command(URL, SIGNATURES["image"]).startswith("python3 -c ")
    assert example_command(URL, SIGNATURES["small"]).startswith("curl ")


@CASES
def test_arrays_have_the_type_of_the_input(inputs: list[TensorSpec]) -> None:
    needed = {spec.name: spec for spec in inputs if not spec.is_optional}
    for name, datatype, expression in example_arrays(inputs):
        array = eval(expression, {"np": np, "ml_dtypes": ml_dtypes, "base64": base64})
        assert array.dtype == dtype_of(name, datatype) and array.ndim == len(needed[name].shape)
