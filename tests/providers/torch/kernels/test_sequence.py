"""Sequences and optionals: positions from either end, empty ones, maps, splits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.testing import assert_array_equal

from onward.passes.pipelines import PREPARE
from onward.providers.torch.lower import lower
from onward.providers.torch.table import HOST, KERNELS
from tests.providers.torch.one_node import run_model, run_op

Array = np.ndarray[Any, Any]
ITEMS = [np.float32([i, i + 0.5]) for i in range(4)]


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 25]>\n{text}')


def at(position: int, dtype: Any = np.int64) -> Array:
    return np.array(position, dtype)


@pytest.mark.parametrize("position", [0, 3, -1, -4])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_positions_count_from_either_end(position: int, dtype: Any) -> None:
    index = at(position, dtype)
    assert_array_equal(run_op("SequenceAt", [ITEMS, index])[0], ITEMS[position])
    left = [item for i, item in enumerate(ITEMS) if i != position % 4]
    assert_array_equal(run_op("SequenceErase", [ITEMS, index])[0], left)
    new = np.float32([9, 9])
    expected = [*ITEMS[:position], new, *ITEMS[position:]]
    assert_array_equal(run_op("SequenceInsert", [ITEMS, new, index])[0], expected)


def test_default_position_is_the_end() -> None:
    new = np.float32([9, 9])
    assert_array_equal(run_op("SequenceInsert", [ITEMS, new])[0], [*ITEMS, new])
    assert_array_equal(run_op("SequenceInsert", [ITEMS, new, at(4)])[0], [*ITEMS, new])
    assert_array_equal(run_op("SequenceErase", [ITEMS])[0], ITEMS[:-1])


def test_a_sequence_is_never_changed_in_place() -> None:
    model = parse("""
        g (float[n] x) => (seq(float[n]) a, seq(float[n]) b, seq(float[n]) c)
        { a = SequenceConstruct(x, x) b = SequenceErase(a) c = SequenceInsert(a, x) }
    """)
    assert [len(sequence) for sequence in run_model(model, [ITEMS[0]])] == [2, 1, 3]


def test_the_length_of_a_sequence_is_a_number() -> None:
    model = parse("""
        g (seq(float[n]) xs, float[a, b] x) => (int64 length, float[c, d] y)
        <int64[1] axis = {0}, int64[1] rest = {-1}>
        {
            length = SequenceLength(xs)
            rows = Unsqueeze(length, axis)
            shape = Concat <axis = 0> (rows, rest)
            y = Reshape(x, shape)
        }
    """)
    source = lower(PREPARE(ir.from_proto(model)).graph, KERNELS, HOST).source
    assert source.count("as_tensor(") == 1  # the output
    length, y = run_model(model, [ITEMS, np.zeros((2, 6), np.float32)])
    assert length == 4
    assert y.shape == (4, 3)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_sequence_is_joined_at_an_old_or_a_new_axis(axis: int) -> None:
    items = [np.full((2, 3), i, np.float32) for i in range(3)]
    (y,) = run_op("ConcatFromSequence", [items], {"axis": axis})
    assert_array_equal(y, np.concatenate(items, axis))
    (y,) = run_op("ConcatFromSequence", [items], {"axis": axis, "new_axis": 1})
    assert_array_equal(y, np.stack(items, axis))


@pytest.mark.parametrize("axis", [0, -1])
def test_a_tensor_is_split_into_a_sequence(axis: int) -> None:
    x = np.arange(20.0, dtype=np.float32).reshape(4, 5)
    length = x.shape[axis]

    def parts(split: Array | None, **attributes: int) -> list[tuple[int, ...]]:
        (pieces,) = run_op("SplitToSequence", [x, split], {"axis": axis, **attributes})
        if attributes.get("keepdims", 1) or split is not None:
            assert_array_equal(np.concatenate(pieces, axis), x)
        return [piece.shape for piece in pieces]

    sizes = {0: lambda n: (n, 5), -1: lambda n: (4, n)}[axis]
    assert parts(None) == [sizes(1)] * length
    assert parts(None, keepdims=0) == [tuple(np.delete(x.shape, axis))] * length
    assert parts(at(3)) == [sizes(3), sizes(length - 3)]
    assert parts(np.array([1, length - 1]), keepdims=0) == [sizes(1), sizes(length - 1)]


MAPPED = parse("""
    g (seq(float[n]) xs, seq(float[n]) ys, float[n] z) => (seq(float[n]) sums, seq(float[n]) diffs)
    {
        sums, diffs = SequenceMap (xs, ys, z) <
            body = each (float[n] x, float[n] y, float[n] w) => (float[n] sum, float[n] diff)
            { t = Add(x, y)  sum = Add(t, w)  diff = Sub(x, y) }
        >
    }
""")


def test_a_map_takes_sequences_element_by_element_and_tensors_whole() -> None:
    z = np.float32([1, 2])
    sums, diffs = run_model(MAPPED, [ITEMS, ITEMS[::-1], z])
    assert_array_equal(sums, [x + y + z for x, y in zip(ITEMS, ITEMS[::-1], strict=True)])
    assert_array_equal(diffs, [x - y for x, y in zip(ITEMS, ITEMS[::-1], strict=True)])


def test_map_of_an_empty_sequence_is_empty() -> None:
    model = parse("""
        g (float[n] z) => (seq(float[n]) y) {
            none = SequenceEmpty()
            y = SequenceMap (none, z) <
                body = each (float[n] x, float[n] w) => (float[n] sum) { sum = Add(x, w) }
            >
        }
    """)
    assert run_model(model, [ITEMS[0]]) == [[]]


def test_an_optional_is_its_value_or_none() -> None:
    model = parse("""
        g (float[n] x) => (float[n] y, bool full, bool empty, bool absent)
        {
            some = Optional(x)
            y = OptionalGetElement(some)
            full = OptionalHasElement(some)
            nothing = Optional <type = float[2]> ()
            empty = OptionalHasElement(nothing)
            absent = OptionalHasElement()
        }
    """)
    y, full, empty, absent = run_model(model, [ITEMS[1]])
    assert_array_equal(y, ITEMS[1])
    assert (full, empty, absent) == (True, False, False)


def test_the_element_of_an_empty_optional_is_an_error() -> None:
    model = parse("""
        g () => (float[n] y)
        { nothing = Optional <type = float[2]> ()  y = OptionalGetElement(nothing) }
    """)
    with pytest.raises(ValueError, match="OptionalGetElement of an optional that is empty"):
        run_model(model, [])
