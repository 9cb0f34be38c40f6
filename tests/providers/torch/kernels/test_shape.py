"""Reshape to Col2Im, beyond ONNX's node tests: ranks, empty tensors, types, unusual attributes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]
EVERY_TYPE: list[Any] = [
    *[np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.bool_, np.complex64],
    *[np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64],
]
LARGEST, SMALLEST = 2**63 - 1, -(2**63) + 1


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    """Small whole numbers, exact in every type."""
    return np.random.default_rng(0).integers(0, 9, shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


REFERENCED: list[tuple[str, list[Array | None], Attributes]] = [
    ("Reshape", [numbers(2, 3, 4), ints(0, -1)], {}),
    ("Reshape", [numbers(2, 3, 4), ints(4, 0, -1)], {}),
    ("Reshape", [numbers(), ints(1, 1)], {}),
    ("Reshape", [numbers(1, 1), ints()], {}),
    ("Reshape", [numbers(0, 3), ints(3, 0)], {"allowzero": 1}),
    ("Flatten", [numbers(2, 3, 4)], {"axis": 0}),
    ("Flatten", [numbers(2, 3, 4)], {"axis": 3}),
    ("Flatten", [numbers(2, 3, 4)], {"axis": -1}),
    ("Squeeze", [numbers(1, 3, 1)], {}),
    ("Squeeze", [numbers(1, 3, 1), ints(-1)], {}),
    ("Squeeze", [numbers(1, 3, 1), ints(2, 0)], {}),
    ("Unsqueeze", [numbers(3), ints(-1, 0)], {}),
    ("Unsqueeze", [numbers(3, 4), ints(3, 1)], {}),
    ("Unsqueeze", [numbers(), ints(0)], {}),
    ("Transpose", [numbers(2, 3, 4)], {}),
    ("Transpose", [numbers()], {}),
    ("Transpose", [numbers(2, 3, 4)], {"perm": [1, 2, 0]}),
    ("Expand", [numbers(3, 1), ints(2, 1, 4)], {}),
    ("Expand", [numbers(2, 3, 1), ints(4)], {}),
    ("Expand", [numbers(2, 3), ints(1)], {}),
    ("Expand", [numbers(), ints(2, 0)], {}),
    ("Tile", [numbers(2, 3), ints(2, 1)], {}),
    ("Tile", [numbers(2, 3), ints(0, 2)], {}),
    ("Concat", [numbers(2, 3), numbers(2, 0), numbers(2, 1)], {"axis": -1}),
    ("Split", [numbers(7, 2), None], {"axis": 0, "num_outputs": 3}),
    ("Split", [numbers(2, 6), ints(1, 0, 5)], {"axis": -1}),
    ("Size", [numbers(2, 0, 3)], {}),
    ("Shape", [numbers(2, 3, 4)], {"start": -2}),
    ("Shape", [numbers(2, 3, 4)], {"start": 2, "end": 1}),
    ("Slice", [numbers(5, 6), ints(-3), ints(LARGEST), ints(1)], {}),
    ("Slice", [numbers(5, 6), ints(-99, 1), ints(3, -1)], {}),
    ("Slice", [numbers(5, 6), ints(-1), ints(SMALLEST), ints(0), ints(-2)], {}),
    ("Slice", [numbers(5, 6), ints(99, 4), ints(-99, 0), ints(-1, 0), ints(-1, -3)], {}),
    ("Slice", [numbers(5, 6), ints(1), ints(4), ints(0), ints(-1)], {}),
    ("Slice", [numbers(0, 6), ints(3), ints(SMALLEST), ints(0), ints(-1)], {}),
    ("Slice", [numbers(5, 6), ints(0), ints(5), ints(0), ints(99)], {}),
    ("Slice", [numbers(5), np.int32([1]), np.int32([3]), np.int32([0]), np.int32([1])], {}),
    ("DepthToSpace", [numbers(2, 18, 2, 3)], {"blocksize": 3, "mode": "DCR"}),
    ("DepthToSpace", [numbers(2, 18, 2, 3)], {"blocksize": 3, "mode": "CRD"}),
    ("SpaceToDepth", [numbers(2, 2, 6, 9)], {"blocksize": 3}),
    ("SpaceToDepth", [numbers(2, 2, 6, 9)], {"blocksize": 3, "mode": "CRD"}),
    ("CenterCropPad", [numbers(5, 4, 3), ints(2, 7)], {"axes": [-1, 0]}),
    ("CenterCropPad", [numbers(5, 4), ints(2, 4)], {}),
    ("Range", [np.float32(1), np.float32(2), np.float32(0.3)], {}),
    ("Range", [np.int16(5), np.int16(-5), np.int16(-3)], {}),
    ("Range", [np.int64(5), np.int64(2), np.int64(1)], {}),
    ("Range", [np.float64(2), np.float64(2), np.float64(-0.1)], {}),
]


@pytest.mark.parametrize("case", range(len(REFERENCED)), ids=lambda i: f"{REFERENCED[i][0]}-{i}")
def test_shape_operators_match_the_reference(case: int) -> None:
    op, inputs, attributes = REFERENCED[case]
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    outputs = 3 if op == "Split" else 1
    expected = reference_op(op, inputs, attributes, outputs=outputs)
    for got, wanted in zip(run_op(op, inputs, attributes, outputs=outputs), expected, strict=True):
        assert got.dtype == wanted.dtype
        assert_array_equal(got, wanted)


def test_an_empty_tensor_can_be_flattened() -> None:
    assert run_op("Flatten", [numbers(0, 3, 4)], {"axis": 1})[0].shape == (0, 12)


# -- Pad ---------------------------------------------------------------------------------------

MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}
PADS: list[tuple[tuple[int, ...], list[int], list[int] | None]] = [
    ((5,), [2, 3], None),
    ((2, 3), [1, 0, 1, 2], None),
    ((2, 3, 4), [0, 1, 2, 0, 2, 3], None),
    ((2, 3, 4, 5), [0, 0, 2, 1, 0, 0, 1, 3], None),
    ((2, 3, 4, 5), [1, 0, 0, 0, 1, 0, 0, 0], None),
    ((2, 2, 3, 4, 5), [0, 0, 1, 2, 1, 0, 0, 2, 1, 2], None),
    ((2, 2, 2, 3, 4, 5), [0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 1], None),
    ((3, 4), [2, 1, 1, 0], [-1, 0]),
    ((3, 4), [0, 0, 0, 0], None),
    ((3, 4), [7, 9], [1]),  # further than it is long
    ((1, 4), [2, 2], [0]),  # nothing to reflect but itself
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape, pads, axes", PADS)
def test_pad_matches_numpy(
    mode: str, shape: tuple[int, ...], pads: list[int], axes: list[int] | None
) -> None:
    x = numbers(*shape)
    width = [(0, 0)] * len(shape)
    for i, axis in enumerate(range(len(shape)) if axes is None else axes):
        width[axis] = (pads[i], pads[i + len(pads) // 2])
    given = None if axes is None else ints(*axes)
    (y,) = run_op("Pad", [x, ints(*pads), None, given], {"mode": mode})
    assert_array_equal(y, np.pad(x, width, mode=mode))  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", MODES)
def test_a_negative_pad_cuts_off(mode: str) -> None:
    x = numbers(4, 5)
    (y,) = run_op("Pad", [x, ints(-1, 0, -2, -3)], {"mode": mode})
    assert_array_equal(y, x[1:-2, :-3])
    (y,) = run_op("Pad", [x, ints(0, -2, 0, 1)], {"mode": "constant"})
    assert_array_equal(y, np.pad(x[:, 2:], [(0, 0), (0, 1)]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", EVERY_TYPE)
def test_pad_takes_every_type(mode: str, dtype: Any) -> None:
    x = numbers(2, 3, 4, 5, dtype=dtype)
    (y,) = run_op("Pad", [x, ints(0, 0, 1, 1, 0, 0, 2, 0)], {"mode": mode})
    assert y.dtype == x.dtype
    assert_array_equal(y, np.pad(x, [(0, 0), (0, 0), (1, 2), (1, 0)], mode=mode))  # type: ignore[call-overload]


def test_pad_takes_its_value_exactly() -> None:
    big = np.array(2**53 + 1, np.int64)
    (y,) = run_op("Pad", [ints(1), ints(1, 0), big], {})
    assert_array_equal(y, [2**53 + 1, 1])
    (y,) = run_op("Pad", [np.array([False]), ints(0, 1), np.array(True)], {})
    assert_array_equal(y, [False, True])
    (y,) = run_op("Pad", [np.float32([1]), ints(1, 1), np.float32(-np.inf)], {})
    assert_array_equal(y, [-np.inf, 1, -np.inf])


# -- every type --------------------------------------------------------------------------------

MOVES: list[tuple[str, list[Array], Attributes]] = [
    ("Slice", [ints(2, 2), ints(0, 0), ints(0, 1), ints(-1, 1)], {}),
    ("Expand", [ints(2, 3, 4)], {}),
    ("Tile", [ints(2, 2)], {}),
    ("Transpose", [], {}),
    ("CenterCropPad", [ints(5, 2)], {}),
]


@pytest.mark.parametrize("dtype", EVERY_TYPE)
@pytest.mark.parametrize("op, more, attributes", MOVES)
def test_reordering_keeps_every_type(
    op: str, more: list[Array], attributes: Attributes, dtype: Any
) -> None:
    x = numbers(3, 4, dtype=dtype)
    (y,) = run_op(op, [x, *more], attributes)
    (expected,) = reference_op(op, [x, *more], attributes)
    assert y.dtype == x.dtype
    assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", EVERY_TYPE)
@pytest.mark.parametrize("batch_axis", [0, 1])
def test_reverse_sequence_reverses_the_start_of_each_sequence(batch_axis: int, dtype: Any) -> None:
    x = numbers(*[(4, 3, 2), (3, 4, 2)][batch_axis], dtype=dtype)  # 4 sequences of 3 pairs
    lengths = ints(0, 1, 2, 3)
    attributes = {"batch_axis": batch_axis, "time_axis": 1 - batch_axis}
    y, rows = run_op("ReverseSequence", [x, lengths], attributes)[0], x.copy()
    for i, length in enumerate(lengths):
        at: Any = (i, slice(0, length)) if batch_axis == 0 else (slice(0, length), i)
        rows[at] = x[at][::-1]
    assert_array_equal(y, rows)


# -- tensors from numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY_TYPE)
def test_constant_of_shape_has_the_values_type(dtype: Any) -> None:
    value = np.array([3]).astype(dtype)
    attribute = {"value": _tensor(value)}
    for shape in (ints(), ints(2, 0), ints(2, 3)):
        (y,) = run_op("ConstantOfShape", [shape], attribute)
        assert y.dtype == dtype
        assert_array_equal(y, np.full(shape, value[0]))


def test_constant_of_shape_defaults_to_float_zero() -> None:
    (y,) = run_op("ConstantOfShape", [ints(2)], {})
    assert y.dtype == np.float32
    assert_array_equal(y, [0, 0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_range_of_halves_does_not_accumulate_rounding(dtype: Any) -> None:
    start, limit, delta = (np.array(number, dtype) for number in (0, 4, 1 / 128))
    (y,) = run_op("Range", [start, limit, delta], {})
    assert y.dtype == dtype
    assert_array_equal(y, (np.arange(512) / 128).astype(dtype))


def _tensor(array: Array) -> Any:
    return onnx.numpy_helper.from_array(array)


# -- Col2Im ------------------------------------------------------------------------------------

FOLDS: list[tuple[list[int], list[int], Attributes]] = [
    ([5, 5], [2, 2], {}),
    ([5, 6], [2, 3], {"strides": [2, 1]}),
    ([5, 6], [2, 2], {"pads": [1, 0, 2, 1]}),
    ([6, 7], [3, 2], {"dilations": [2, 3]}),
    ([7], [3], {"strides": [2], "pads": [1, 2], "dilations": [2]}),
    ([3, 4, 5], [2, 2, 3], {"pads": [0, 1, 0, 1, 0, 0], "strides": [1, 2, 1]}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint16])
@pytest.mark.parametrize("image, block, attributes", FOLDS)
def test_col2im_adds_each_block_to_its_place(
    image: list[int], block: list[int], attributes: Attributes, dtype: Any
) -> None:
    rank = len(image)
    pads = attributes.get("pads", [0] * 2 * rank)
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    sizes = [pads[i] + image[i] + pads[rank + i] for i in range(rank)]
    counts = [(sizes[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    x = numbers(2, 3 * int(np.prod(block)), int(np.prod(counts)), dtype=dtype)
    expected = np.zeros((2, 3, *sizes), dtype)
    columns = x.reshape(2, 3, *block, *counts)
    for inside in np.ndindex(*block):
        for origin in np.ndindex(*counts):
            at = tuple(o * s + k * d for o, s, k, d in zip(origin, strides, inside, dilations))
            expected[(..., *at)] += columns[(slice(None), slice(None), *inside, *origin)]
    inner = tuple(slice(pads[i], pads[i] + image[i]) for i in range(rank))
    (y,) = run_op("Col2Im", [x, ints(*image), ints(*block)], attributes)
    assert y.dtype == dtype
    assert_allclose(y, expected[(..., *inner)])
