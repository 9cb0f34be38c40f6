"""Convolutions beyond the node tests of ONNX."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

rng = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1-D": ((2, 3, 9), (4, 3, 3), {}),
    "2-D": ((2, 3, 7, 8), (4, 3, 3, 2), {}),
    "3-D": ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"strides": [1, 2, 1]}),
    "one channel a group": ((2, 4, 7, 7), (8, 1, 3, 3), {"group": 4}),
    "groups, dilated": ((1, 4, 9, 9), (6, 2, 3, 3), {"group": 2, "dilations": [2, 3]}),
    "pads of one side": ((1, 2, 6, 6), (2, 2, 3, 3), {"pads": [2, 0, 0, 1]}),
    "pads, strides": ((1, 2, 6, 7), (2, 2, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 3]}),
    "kernel_shape written": ((1, 2, 6, 7), (2, 2, 3, 3), {"kernel_shape": [3, 3]}),
    "VALID": ((1, 2, 6, 7), (2, 2, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    "SAME_UPPER": ((1, 2, 6, 7), (2, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    "SAME_LOWER": ((1, 2, 6, 7), (2, 2, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_matches_the_reference(name: str) -> None:
    shape, weight, attributes = CONVOLUTIONS[name]
    inputs = [floats(*shape), floats(*weight), floats(weight[0])]
    (expected,) = reference_op("Conv", inputs, attributes)
    (y,) = run_op("Conv", inputs, attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_convolution_of_an_empty_batch_is_empty() -> None:
    (y,) = run_op("Conv", [floats(0, 2, 5, 5), floats(3, 2, 3, 3)])
    assert y.shape == (0, 3, 3, 3)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_sixteen_bit_types_are_kept(op: str) -> None:
    x, w = floats(1, 2, 5, 5).astype(np.float16), floats(2, 2, 3, 3).astype(np.float16)
    (y,) = run_op(op, [x, w])
    (expected,) = run_op(op, [x.astype(np.float32), w.astype(np.float32)])
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, expected, rtol=1e-2, atol=1e-2)


def scattered(
    x: np.ndarray[Any, Any],
    w: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    lengths: list[int],
    begins: list[int],
    strides: list[int],
    dilations: list[int],
    group: int,
) -> np.ndarray[Any, Any]:
    """The definition: every x adds its kernel to y, which starts as b."""
    (batch, channels), rank = x.shape[:2], x.ndim - 2
    maps = w.shape[1]
    y = np.zeros((batch, maps * group, *lengths))
    for n, c in product(range(batch), range(channels)):
        first = c // (channels // group) * maps
        for place, tap in product(np.ndindex(*x.shape[2:]), np.ndindex(*w.shape[2:])):
            at = [place[i] * strides[i] + tap[i] * dilations[i] - begins[i] for i in range(rank)]
            if all(0 <= p < length for p, length in zip(at, lengths)):
                y[(n, slice(first, first + maps), *at)] += (
                    x[(n, c, *place)] * w[(c, slice(None), *tap)]
                )
    return y + b.reshape(-1, *[1] * rank)


# shape of x, shape of w, attributes -> lengths of y, pads before
TRANSPOSED: dict[
    str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], list[int], list[int]]
] = {
    "1-D": ((2, 3, 4), (3, 2, 3), {"strides": [2]}, [9], [0]),
    "2-D": ((1, 2, 3, 4), (2, 3, 2, 3), {}, [4, 6], [0, 0]),
    "3-D": ((1, 2, 2, 3, 2), (2, 1, 2, 2, 3), {"strides": [1, 2, 3]}, [3, 6, 6], [0, 0, 0]),
    "groups": ((2, 4, 3, 3), (4, 2, 3, 3), {"group": 2, "strides": [2, 2]}, [7, 7], [0, 0]),
    "dilated": ((1, 2, 3, 3), (2, 2, 2, 2), {"dilations": [2, 3]}, [5, 6], [0, 0]),
    "pads": ((1, 2, 4, 4), (2, 2, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, [7, 7], [1, 1]),
    "a smaller end": (
        (1, 2, 4, 4),
        (2, 2, 3, 3),
        {"pads": [1, 1, 0, 0], "strides": [2, 2]},
        [8, 8],
        [1, 1],
    ),
    "a larger end": ((1, 2, 4, 4), (2, 2, 3, 3), {"pads": [0, 0, 2, 1]}, [4, 5], [0, 0]),
    "output_padding": (
        (1, 2, 3, 3),
        (2, 2, 3, 3),
        {"strides": [3, 2], "pads": [1, 1, 1, 1], "output_padding": [2, 1]},
        [9, 6],
        [1, 1],
    ),
    "output_shape below": (
        (1, 2, 3, 3),
        (2, 2, 3, 3),
        {"strides": [2, 2], "output_shape": [6, 5]},
        [6, 5],
        [1, 1],
    ),
    "output_shape above": (
        (1, 1, 3, 3),
        (1, 2, 3, 3),
        {"strides": [3, 2], "output_shape": [10, 8]},
        [10, 8],
        [0, 0],
    ),
    "SAME_UPPER": (
        (1, 2, 3, 4),
        (2, 2, 3, 4),
        {"auto_pad": "SAME_UPPER", "strides": [2, 1]},
        [6, 4],
        [0, 1],
    ),
    "SAME_LOWER": (
        (1, 2, 3, 4),
        (2, 2, 3, 4),
        {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
        [6, 4],
        [1, 2],
    ),
    "SAME, stride over kernel": (
        (1, 2, 3),
        (2, 2, 2),
        {"auto_pad": "SAME_UPPER", "strides": [4]},
        [12],
        [0],
    ),
    "VALID": ((1, 2, 3), (2, 2, 2), {"auto_pad": "VALID"}, [4], [0]),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution_scatters(name: str) -> None:
    shape, weight, attributes, lengths, begins = TRANSPOSED[name]
    group, ones = attributes.get("group", 1), [1] * len(lengths)
    x, w, b = floats(*shape), floats(*weight), floats(weight[1] * group)
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    (y,) = run_op("ConvTranspose", [x, w, b], attributes)
    expected = scattered(x, w, b, lengths, begins, strides, dilations, group)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_deformable_convolution_without_offsets_is_a_convolution(rank: int) -> None:
    kernel, out = [2, 3, 2][:rank], [6, 5, 4][:rank]
    x, w, b = floats(2, 4, *[6, 8, 5][:rank]), floats(6, 2, *kernel), floats(6)
    attributes = {"group": 2, "pads": [1] * rank + [0] * rank, "strides": [1, 2, 1][:rank]}
    (expected,) = run_op("Conv", [x, w, b], attributes)
    out = list(expected.shape[2:])
    offset = np.zeros((2, 2 * int(np.prod(kernel)) * rank, *out), np.float32)
    (y,) = run_op("DeformConv", [x, w, offset, b], {**attributes, "offset_group": 2})
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


def test_deformable_convolution_with_a_whole_offset_reads_the_next_element() -> None:
    x, w = floats(1, 1, 6), floats(1, 1, 2)
    offset = np.ones((1, 2, 5), np.float32)
    (y,) = run_op("DeformConv", [x, w, offset])
    shifted = np.append(x[..., 1:], np.zeros((1, 1, 1), np.float32), axis=2)
    (expected,) = run_op("Conv", [shifted, w])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_deformable_convolution_matches_the_reference() -> None:
    x, w, b = floats(1, 4, 5, 5), floats(2, 2, 2, 2), floats(2)
    attributes = {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 1], "dilations": [2, 1]}
    offset, mask = floats(1, 16, 4, 5), floats(1, 8, 4, 5)
    inputs = [x, w, offset, b, mask]
    (expected,) = reference_op("DeformConv", inputs, attributes)
    (y,) = run_op("DeformConv", inputs, attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cut", [1, 2, 6])
def test_a_causal_convolution_in_two_parts_equals_the_whole(cut: int) -> None:
    x, w, b = floats(2, 3, 7), floats(3, 1, 4), floats(3)
    attributes = {"activation": "silu"}
    whole, state = run_op("CausalConvWithState", [x, w, b], attributes, outputs=2)
    first, between = run_op("CausalConvWithState", [x[..., :cut], w, b], attributes, outputs=2)
    second, after = run_op(
        "CausalConvWithState", [x[..., cut:], w, b, between], attributes, outputs=2
    )
    np.testing.assert_allclose(np.concatenate([first, second], 2), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(after, state)
