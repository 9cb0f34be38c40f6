"""Scales, offsets and padding are folded into convolutions where that is correct."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.graph.builder import OpBuilder
from tests.passes.one_graph import built, left_after
from tests.passes.running import run_ort

rng = np.random.default_rng(4)
IMAGE = (2, 4, 6, 6)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def norm(op: OpBuilder, x: Any, channels: int, **attributes: Any) -> Any:
    statistics = [real(channels), real(channels), real(channels), np.abs(real(channels)) + 0.1]
    return op.BatchNormalization(x, *statistics, epsilon=1e-3, **attributes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("shape", [IMAGE, ("n", 4, "h", "w")])
def test_batch_normalization_is_folded_into_a_convolution(
    bias: bool, group: int, shape: Any
) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.Conv(x, real(6, 4 // group, 3, 3), real(6) if bias else None, group=group)
        return norm(op, y, 6)

    assert left_after(built(block, shape)) == ["Conv"]


@pytest.mark.parametrize("group", [1, 2])
def test_batch_normalization_is_folded_into_a_transposed_convolution(group: int) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.ConvTranspose(x, real(4, 6 // group, 3, 3), group=group, strides=[2, 2])
        return norm(op, y, 6)

    assert left_after(built(block, IMAGE), run=run_ort) == ["ConvTranspose"]


def test_batch_normalization_in_training_stays() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.Conv(x, real(6, 4, 3, 3))
        return norm(op, y, 6, training_mode=1, outputs=3)[0]

    assert "BatchNormalization" in left_after(built(block, IMAGE))


def test_a_convolution_that_is_read_elsewhere_stays() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.Conv(x, real(6, 4, 3, 3))
        return norm(op, y, 6), op.Relu(y)

    assert left_after(built(block, IMAGE)) == ["BatchNormalization", "Conv", "Relu"]


def test_weights_that_two_convolutions_share_are_not_changed_for_the_other() -> None:
    weight = real(4, 4, 1, 1)

    def block(op: OpBuilder, x: Any) -> Any:
        w = op.initializer("w", weight)
        return norm(op, op.Conv(x, w), 4), op.Conv(op.Relu(x), w)

    assert left_after(built(block, IMAGE)) == ["Conv", "Conv", "Relu"]


def test_weights_that_a_feed_can_change_stay() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return norm(op, op.Conv(x, op.initializer("w", real(4, 4, 1, 1))), 4)

    model = built(block, IMAGE)
    model.graph.inputs.append(model.graph.initializers["w"])
    assert left_after(model) == ["BatchNormalization", "Conv"]


def test_half_precision_weights_stay_half() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.Conv(x, (real(4, 4, 1, 1) * 0.1).astype(np.float16))
        return op.Mul(y, real(4, 1, 1).astype(np.float16))

    assert left_after(built(block, IMAGE, dtype="float16"), rtol=2e-2) == ["Conv"]


@pytest.mark.parametrize("operator", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (1,), ()])
def test_affine_map_after_a_convolution_is_folded(operator: str, shape: Any) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.Conv(x, real(6, 4, 3, 3), real(6))
        return getattr(op, operator)(y, np.abs(real(*shape)) + np.float32(0.5))

    assert left_after(built(block, IMAGE)) == ["Conv"]


@pytest.mark.parametrize("shape", [(6,), (4, 4), (6, 4, 1), (2, 6, 1, 1), (1, 1, 6, 1, 1)])
def test_a_factor_that_is_not_for_channels_stays(shape: Any) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.Mul(op.Conv(x, real(6, 4, 3, 3)), real(*shape))

    width = 8 if shape == (6,) else 6
    assert left_after(built(block, (2, 4, 6, width))) == ["Conv", "Mul"]


def test_constant_divided_by_a_convolution_stays() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.Sub(real(6, 1, 1), op.Conv(x, real(6, 4, 3, 3)))

    assert left_after(built(block, IMAGE)) == ["Conv", "Sub"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("pads", [[0] * 4, [1] * 4])
def test_factor_before_a_convolution_is_folded(group: int, pads: list[int]) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        w = real(6, 4 // group, 3, 3)
        return op.Conv(op.Mul(x, real(4, 1, 1)), w, pads=pads, group=group)

    assert left_after(built(block, IMAGE)) == ["Conv"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("operator", ["Add", "Sub"])
def test_offset_before_an_unpadded_convolution_is_folded(group: int, operator: str) -> None:
    def block(op: OpBuilder, x: Any, pads: list[int]) -> Any:
        w, shift = real(6, 4 // group, 3, 3), real(4, 1, 1)
        return op.Conv(getattr(op, operator)(x, shift), w, real(6), pads=pads, group=group)

    assert left_after(built(lambda op, x: block(op, x, [0] * 4), IMAGE)) == ["Conv"]
    assert left_after(built(lambda op, x: block(op, x, [1] * 4), IMAGE)) == [
        *sorted([operator, "Conv"])
    ]


def with_border(
    op: OpBuilder, x: Any, pads: list[int], value: Any = None, mode: str = "constant"
) -> Any:
    return op.Pad(x, np.asarray(pads, np.int64), value, mode=mode)


AROUND = [0, 0, 1, 2, 0, 0, 0, 1]


def test_zero_padding_is_folded_into_a_convolution() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.Conv(with_border(op, x, AROUND), real(6, 4, 3, 3), pads=[1, 0, 1, 0])

    assert left_after(built(block, IMAGE)) == ["Conv"]


def test_zero_padding_is_folded_into_an_average_that_counts_it() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.AveragePool(with_border(op, x, AROUND), kernel_shape=[3, 3], strides=[2, 2])

    assert left_after(built(block, IMAGE)) == ["AveragePool"]


@pytest.mark.parametrize(
    ("pads", "value", "mode"),
    [
        (AROUND, np.float32(1), "constant"),
        (AROUND, None, "reflect"),
        ([0, 1, 0, 0, 0, 0, 0, 0], None, "constant"),
        ([0, 0, -1, 0, 0, 0, 0, 0], None, "constant"),
    ],
)
def test_other_padding_stays(pads: list[int], value: Any, mode: str) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.Conv(with_border(op, x, pads, value, mode), real(6, 4 + pads[1], 3, 3))

    assert "Pad" in left_after(built(block, IMAGE), run=run_ort)


def test_an_average_that_leaves_its_own_padding_out_stays() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.AveragePool(with_border(op, x, AROUND), kernel_shape=[3, 3], pads=[1] * 4)

    assert "Pad" in left_after(built(block, IMAGE))


def test_padding_as_wide_as_the_window_stays() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        return op.AveragePool(with_border(op, x, [0, 0, 2, 2, 0, 0, 2, 2]), kernel_shape=[2, 2])

    assert "Pad" in left_after(built(block, IMAGE))
