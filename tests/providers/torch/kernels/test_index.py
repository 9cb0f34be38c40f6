"""Gather, scatter and choose, beyond ONNX's node tests: signs, ranks, duplicates, types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onward.passes.pipelines import PREPARE
from onward.providers.torch.lower import lower
from onward.providers.torch.table import HOST, KERNELS
from tests.providers.torch.one_node import run_model, run_op
from tests.providers.torch.reference import reference_op

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]
UNSIGNED: list[Any] = [np.uint8, np.uint16, np.uint32, np.uint64]
EVERY_TYPE: list[Any] = [
    *[np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.bool_, np.complex64],
    *[np.int8, np.int16, np.int32, np.int64, *UNSIGNED],
]


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Small whole numbers, exact in every type."""
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def below(length: int, *shape: int, seed: int = 1) -> Array:
    """Positions within an axis, counted from either end."""
    return np.random.default_rng(seed).integers(-length, length, shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


REFERENCED: list[tuple[str, list[Array], Attributes]] = [
    ("Gather", [numbers(3, 4), below(4, 2, 5)], {"axis": 1}),
    ("Gather", [numbers(3, 4), below(3, 2).astype(np.int32)], {"axis": -2}),
    ("Gather", [numbers(3, 4), np.array(-1)], {"axis": 1}),
    ("Gather", [numbers(3, 4), below(3, 0)], {"axis": 0}),
    ("GatherElements", [numbers(3, 4), below(4, 3, 2)], {"axis": 1}),
    ("GatherElements", [numbers(3, 4), below(3, 2, 4).astype(np.int32)], {"axis": 0}),
    ("GatherND", [numbers(3, 4, 5), below(3, 2, 2)], {}),
    ("GatherND", [numbers(3, 4, 5), below(3, 3)], {}),
    ("GatherND", [numbers(3, 4, 5), below(3, 2, 6, 1)], {}),
    ("GatherND", [numbers(2, 3, 4, 5), below(3, 2, 6, 2)], {"batch_dims": 1}),
    ("GatherND", [numbers(2, 3, 4, 5), below(4, 2, 3, 1)], {"batch_dims": 2}),
    ("Compress", [numbers(3, 4), np.array([True, False, True])], {"axis": -1}),
    ("Compress", [numbers(3, 4), np.array([False, True, True, False, True])], {}),
    ("Compress", [numbers(3, 4), np.array([False])], {"axis": 0}),
    ("NonZero", [numbers(3, 4, 2)], {}),
    ("NonZero", [numbers(0, 4)], {}),
    ("OneHot", [below(5, 2, 3), np.array(5), np.float32([-1, 2])], {"axis": 1}),
    ("OneHot", [ints(-6, 5, -5, 4), np.array(5), np.int32([3, 9])], {}),
    ("OneHot", [np.float32([1, -2]), np.float32(3), np.float64([0, 1])], {"axis": 0}),
    ("OneHot", [np.array(1), np.array(3), np.float32([0, 1])], {"axis": -1}),
]


@pytest.mark.parametrize("case", range(len(REFERENCED)), ids=lambda i: f"{REFERENCED[i][0]}-{i}")
def test_indexing_matches_the_reference(case: int) -> None:
    op, inputs, attributes = REFERENCED[case]
    inputs = [np.asarray(x) for x in inputs]
    (got,), (wanted,) = run_op(op, inputs, attributes), reference_op(op, inputs, attributes)
    assert got.dtype == wanted.dtype
    assert_array_equal(got, wanted)


def test_gather_elements_takes_a_part_of_the_other_axes() -> None:
    x, index = numbers(3, 4), below(3, 2, 3)
    (y,) = run_op("GatherElements", [x, index], {"axis": -2})
    assert_array_equal(y, np.take_along_axis(x[:, :3], index, 0))


def test_one_hot_takes_its_depth_as_a_list_and_any_type_of_values() -> None:
    (y,) = run_op("OneHot", [ints(1, -1), ints(3), np.array([True, False])])
    assert_array_equal(y, [[True, False, True], [True, True, False]])


def test_a_constant_index_selects_without_a_tensor() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 25]>
        g (float[a, b, c] x) => (float[a, c] y) <int64 last = {-1}>
        { y = Gather <axis = 1> (x, last) }
    """)
    module = lower(PREPARE(ir.from_proto(model)).graph, KERNELS, HOST)
    assert "gather(v0, -1, axis=1)" in module.source
    x = numbers(2, 3, 4)
    assert_array_equal(run_model(model, [x])[0], x[:, -1])


@pytest.mark.parametrize("dtype", EVERY_TYPE)
def test_gathers_keep_every_type(dtype: Any) -> None:
    x = numbers(4, 3, dtype=dtype)
    assert_array_equal(run_op("Gather", [x, ints(3, 0)], {"axis": 0})[0], x[[3, 0]])
    assert_array_equal(run_op("GatherND", [x, ints(3, 0)[:, None]])[0], x[[3, 0]])
    index = below(4, 2, 3)
    expected = np.take_along_axis(x, index, 0)
    assert_array_equal(run_op("GatherElements", [x, index], {"axis": 0})[0], expected)
    assert_array_equal(run_op("Compress", [x, np.array([False, True])])[0], x.flatten()[1:2])
    assert_array_equal(run_op("NonZero", [x])[0], np.nonzero(x))


# -- scatter -----------------------------------------------------------------------------------

REDUCE: dict[str, Any] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("reduction", REDUCE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, *UNSIGNED])
def test_scatter_elements_reduces_duplicates_in_every_type(reduction: str, dtype: Any) -> None:
    x, updates = numbers(4, 3, dtype=dtype), numbers(3, 3, dtype=dtype, seed=2)
    if dtype in UNSIGNED:  # above the largest signed number
        x[0], updates[1] = np.iinfo(dtype).max, np.iinfo(dtype).max // 2 + 1
    index = np.array([[0, 1, -1], [2, 2, 0], [-1, 0, 1]])  # distinct in each column
    if reduction != "none":
        index = np.array([[0, 1, -1], [0, 1, -1], [-1, 0, 1]])
    expected = x.copy()
    with np.errstate(over="ignore"):
        for i, j in np.ndindex(*index.shape):
            expected[index[i, j], j] = REDUCE[reduction](expected[index[i, j], j], updates[i, j])
    attributes = {"axis": 0, "reduction": reduction}
    (y,) = run_op("ScatterElements", [x, index, updates], attributes)
    assert y.dtype == dtype
    assert_allclose(y, expected)


@pytest.mark.parametrize("reduction", REDUCE)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, *UNSIGNED])
def test_scatter_nd_reduces_slices_in_every_type(reduction: str, dtype: Any) -> None:
    x, index = numbers(3, 4, 2, dtype=dtype), np.array([[[0, 1], [-1, -1]], [[1, 0], [2, 0]]])
    if reduction != "none":
        index[1, 0] = [0, 1]  # twice
    updates = numbers(2, 2, 2, dtype=dtype, seed=3)
    expected = x.copy()
    for at in np.ndindex(2, 2):
        place = tuple(index[at])
        for k in range(2):
            expected[place][k] = REDUCE[reduction](expected[place][k], updates[at][k])
    (y,) = run_op("ScatterND", [x, index, updates], {"reduction": reduction})
    assert y.dtype == dtype
    assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", EVERY_TYPE)
def test_scatters_keep_every_type(dtype: Any) -> None:
    x, updates = numbers(4, 3, dtype=dtype), numbers(1, 3, dtype=dtype, seed=4)
    expected = x.copy()
    expected[2] = updates[0]
    index = np.full((1, 3), -2)
    assert_array_equal(run_op("ScatterElements", [x, index, updates], {"axis": 0})[0], expected)
    assert_array_equal(run_op("ScatterND", [x, ints(-2)[:, None], updates])[0], expected)
    assert_array_equal(run_op("ScatterND", [x, ints(-2), updates[0]])[0], expected)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_without_updates_changes_nothing(reduction: str) -> None:
    x = numbers(3, 4)
    nothing = [np.zeros((0, 1), np.int64), numbers(0, 4)]
    assert_array_equal(run_op("ScatterND", [x, *nothing], {"reduction": reduction})[0], x)
    nothing = [np.zeros((0, 4), np.int64), numbers(0, 4)]
    assert_array_equal(run_op("ScatterElements", [x, *nothing], {"reduction": reduction})[0], x)


@pytest.mark.parametrize("axis", [1, -1, 2])
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("starts", [None, ints(0, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_tensor_scatter_writes_at_each_samples_place(
    axis: int, mode: str, starts: Array | None, dtype: Any
) -> None:
    past = numbers(2, 5, 5, 5, dtype=dtype)
    shape = [2, 5, 5, 5]
    shape[axis] = 3
    update = numbers(*shape, dtype=dtype, seed=5)
    if starts is not None and mode == "circular":
        starts = starts + 2
    inputs = [past, update, starts]
    attributes = {"axis": axis, "mode": mode}
    (y,) = run_op("TensorScatter", inputs, attributes)
    assert_array_equal(y, reference_op("TensorScatter", inputs, attributes)[0])


# -- Unique ------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("sorted_", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, *UNSIGNED])
def test_unique_gives_values_first_positions_numbers_and_counts(
    axis: int | None, sorted_: int, dtype: Any
) -> None:
    x = np.random.default_rng(6).integers(0, 3, (5, 2, 2)).astype(dtype)
    if dtype in UNSIGNED:
        x[x == 1] = np.iinfo(dtype).max
    attributes = {"sorted": sorted_} | ({} if axis is None else {"axis": axis})
    y, first, inverse, counts = run_op("Unique", [x], attributes, outputs=4)
    wanted, at, back, times = np.unique(x, True, True, True, axis=axis)
    order = np.arange(len(at)) if sorted_ else np.argsort(at)
    assert y.dtype == dtype
    assert_array_equal(y, np.take(wanted, order, 0 if axis is None else axis))
    assert_array_equal(first, at[order])
    assert_array_equal(inverse, np.argsort(order)[back.flatten()])
    assert_array_equal(counts, times[order])
    assert_array_equal(run_op("Unique", [x], attributes)[0], y)


# -- NonMaxSuppression -------------------------------------------------------------------------


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("most, iou, score", [(3, 0.2, 0.3), (100, 0.5, 0.0), (100, 0.0, 0.9)])
def test_non_max_suppression_matches_the_reference(
    center: int, most: int, iou: float, score: float
) -> None:
    random = np.random.default_rng(7)
    boxes = random.uniform(0, 4, (2, 30, 4)).astype(np.float32)  # corners in any order
    boxes[0, 3] = boxes[0, 4]  # the same twice
    boxes[1, 5, 2:] = 0 if center else boxes[1, 5, :2]  # no area
    scores = random.uniform(0, 1, (2, 3, 30)).astype(np.float32)
    scores[0, 0, 3] = scores[0, 0, 4]
    inputs = [boxes, scores, ints(most), np.float32([iou]), np.float32([score])]
    attributes = {"center_point_box": center}
    (y,) = run_op("NonMaxSuppression", inputs, attributes)
    assert_array_equal(y, reference_op("NonMaxSuppression", inputs, attributes)[0])


def test_non_max_suppression_keeps_no_boxes_by_default() -> None:
    boxes, scores = numbers(1, 4, 4), numbers(1, 1, 4)
    assert run_op("NonMaxSuppression", [boxes, scores])[0].shape == (0, 3)


# -- TfIdfVectorizer ---------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("skips", [0, 1, 5])
def test_n_grams_are_counted_as_the_reference_counts_them_and_weighted(
    lengths: tuple[int, int], skips: int
) -> None:
    places, weights = [5, 0, 2, 6, 1, 4, 3, 7], np.float32([0.5, 2, 3, 4, 5, 6, 7, 8])
    attributes: Attributes = {
        "min_gram_length": lengths[0],
        "max_gram_length": lengths[1],
        "max_skip_count": skips,
        "ngram_counts": [0, 3, 9],
        "ngram_indexes": places,
        "pool_int64s": [1, 2, 3, *(1, 2), *(2, 2), *(3, 1), *(1, 2, 3), *(2, 2, 2)],
        "weights": weights.tolist(),
    }
    of_column = weights[np.argsort(places)]  # a weight belongs to a pool's n-gram, as in ORT
    for shape in ((9,), (3, 9), (2, 1)):
        for dtype in (np.int32, np.int64):
            x = np.random.default_rng(8).integers(1, 4, shape).astype(dtype)
            (counts,) = reference_op("TfIdfVectorizer", [x], attributes | {"mode": "TF"})
            expected = {
                "TF": counts,
                "IDF": (counts > 0) * of_column,
                "TFIDF": counts * of_column,
            }
            for mode, wanted in expected.items():
                (y,) = run_op("TfIdfVectorizer", [x], attributes | {"mode": mode})
                assert y.dtype == np.float32
                assert_allclose(y, wanted)
