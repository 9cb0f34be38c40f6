"""tensor_data: what goes to bytes and JSON comes back; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import RequestInvalid
from onward.serving.tensor_data import (
    DATATYPES,
    check_shape,
    datatype_of,
    from_json,
    from_raw,
    to_json,
    to_raw,
)


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_raw_and_json_are_read_back(datatype: str) -> None:
    array = np.array([[0, 1], [1, 0], [1, 1]]).astype(DATATYPES[datatype])
    assert datatype_of(array.dtype) == datatype
    for found in (
        from_raw("x", datatype, (3, 2), bytes(to_raw(array))),
        from_json("x", datatype, (3, 2), to_json(array)),
    ):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_bytes_are_read_back() -> None:
    array = np.array([b"", b"a\x00b", "é".encode()], object)
    np.testing.assert_array_equal(from_raw("x", "BYTES", (3,), bytes(to_raw(array))), array)
    np.testing.assert_array_equal(
        from_json("x", "BYTES", (2,), ["a", {"b64": "/w=="}]), [b"a", b"\xff"]
    )


def test_nested_json_is_flattened() -> None:
    assert from_json("x", "INT32", (2, 2), [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ((2, 1, 2), [[1, 2], [3, 4]]),  # axes of size 1 may be left out
        ((4,), [[1, 2, 3, 4]]),
        ((2, 2, 1), [1, 2, 3, 4]),
        ((1, 2, 2), [[1, 2, 3, 4]]),
        ((2, 1, 2), [[[1, 2]], [[3, 4]]]),
    ],
)
def test_nested_json_may_have_the_last_axes_in_one_list(
    shape: tuple[int, ...], data: list[object]
) -> None:
    assert from_json("x", "FP32", shape, data).reshape(-1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("data", [[], [[]], [[], []]])
def test_nested_json_without_elements_is_an_empty_tensor(data: list[object]) -> None:
    assert from_json("x", "FP32", (2, 0), data).shape == (2, 0)


@pytest.mark.parametrize(
    ("shape", "data", "text"),
    [
        ((2, 3), [[1, 2], [3, 4], [5, 6]], r"nested as \[3, 2\], expected its shape \[2, 3\]"),
        ((4,), [[1, 2], [3, 4]], r"nested as \[2, 2\], expected its shape \[4\]"),
        ((2, 2), [[1, 2, 3], [4]], "nested unevenly"),
        ((2, 2), [[1, 2], 3, 4], "nested unevenly"),
        ((2, 2), [1, 2, [3, 4]], "got 3 elements, expected 4"),
    ],
)
def test_json_that_is_not_nested_as_its_shape_is_refused(
    shape: tuple[int, ...], data: list[object], text: str
) -> None:
    with pytest.raises(RequestInvalid, match=f"input 'x'.*{text}"):
        from_json("x", "FP32", shape, data)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "text"),
    [
        ("FP32", (2,), b"1234", r"input 'x' got 4 bytes, expected 8: FP32 \[2\]"),
        ("BOOL", (1,), b"\x02", "neither 0 nor 1"),
        ("FP31", (1,), b"", "unknown datatype 'FP31'"),
        ("BYTES", (1,), b"\x01\x00", "length of a BYTES element is cut off"),
        ("BYTES", (1,), b"\x05\x00\x00\x00abc", "BYTES element is cut off"),
        ("BYTES", (2,), b"\x01\x00\x00\x00a", "not 2 elements"),
        ("BYTES", (0,), b"\x01\x00\x00\x00a", "not 0 elements"),
    ],
)
def test_raw_data_that_does_not_fit_is_refused(
    datatype: str, shape: tuple[int, ...], data: bytes, text: str
) -> None:
    with pytest.raises(RequestInvalid, match=text):
        from_raw("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", ["1"]), ("INT8", [128]), ("INT8", [1.5]), ("UINT8", [-1]), ("BOOL", [1]),
        ("BYTES", [1]), ("BYTES", [{"b64": "?"}]), ("FP32", [1, 2]), ("FP32", 1), ("FP32", [None]),
    ],
)  # fmt: skip
def test_json_that_does_not_fit_is_refused(datatype: str, data: object) -> None:
    with pytest.raises(RequestInvalid, match="input 'x'"):
        from_json("x", datatype, (1,), data)


@pytest.mark.parametrize(
    ("datatype", "number", "text"),
    [
        ("FP16", 70000.0, "70000.0 is out of the range of FP16, -65504 to 65504"),
        ("FP16", -65520, "-65520.0 is out of the range of FP16"),
        ("BF16", 3.4e38, r"3.4e\+38 is out of the range of BF16, -3.3895314e\+38 to"),
        ("FP32", 1e39, r"1e\+39 is out of the range of FP32"),
        ("FP64", 10**400, "0 is out of the range of FP64"),
        ("UINT8", 300, "300 is out of the range of UINT8, 0 to 255"),
        ("INT64", 1 << 63, "9223372036854775808 is out of the range of INT64"),
        ("INT32", True, "an element that is not INT32: true"),
        ("FP32", False, "an element that is not FP32: false"),
        ("INT32", 1.0, "an element that is not INT32: 1.0"),
        ("INT8", {}, "an element that is not INT8: a list or an object"),
    ],
)
def test_json_numbers_out_of_the_range_of_their_type_are_refused(
    datatype: str, number: Any, text: str
) -> None:
    with pytest.raises(RequestInvalid, match=f"^input 'x': .*{text}[^\n]*$"):
        from_json("x", datatype, (2,), [1, number])


@pytest.mark.parametrize(
    ("datatype", "number", "value"),
    [
        ("FP16", 65519, 65504.0),
        ("BF16", (1 << 64) - 1, 2.0**64),
        ("FP32", (1 << 64) - 1, 2.0**64),
        ("FP32", 1e-60, 0.0),
        ("FP64", 1.7e308, 1.7e308),
        ("UINT64", (1 << 64) - 1, (1 << 64) - 1),
    ],
)
def test_json_numbers_are_rounded_to_their_type(datatype: str, number: Any, value: Any) -> None:
    assert from_json("x", datatype, (1,), [number]).tolist() == [value]


@pytest.mark.parametrize("shape", [[0, 1 << 61], [1 << 40, 0, 1 << 40], [1 << 62]])
def test_sizes_that_no_tensor_can_have_are_refused(shape: list[int]) -> None:
    with pytest.raises(RequestInvalid, match="the shape of input 'x' is too large"):
        check_shape("x", shape)


@pytest.mark.parametrize("shape", [None, "2", [-1], [1.0], [True], [1 << 62], [1] * 33])
def test_a_shape_that_is_none_is_refused(shape: object) -> None:
    with pytest.raises(RequestInvalid, match="the shape of input 'x'"):
        check_shape("x", shape)
