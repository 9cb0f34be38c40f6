"""Shapes of operators that ONNX cannot infer."""

from __future__ import annotations

import numpy as np
import pytest

from onward import OpBuilder
from onward.graph.shapes.infer import infer_shapes

MICROSOFT = "com.microsoft"


def test_fused_operators_of_onnxruntime_keep_the_first_inputs_shape() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4, 8))
    ones = op.initializer("ones", np.ones(8, np.float32))
    y, _, _, total = op.SkipLayerNormalization(x, x, ones, ones, domain=MICROSOFT, outputs=4)
    y = op.Gelu(y, domain=MICROSOFT)
    infer_shapes(op.model(y=y, total=total))
    assert y.shape == total.shape == x.shape
    assert y.dtype == total.dtype == x.dtype


@pytest.mark.parametrize(
    "a, b, flags, expected",
    [
        (("batch", 4, 8), (5, 8), {"transB": 1}, ("batch", 4, 5)),
        (("batch", 8, 4), ("batch", 8, 5), {"transA": 1}, ("batch", 4, 5)),
        ((2, 3), (3, 4), {}, (2, 4)),
    ],
)
def test_fused_matmul_has_the_shape_of_matmul(a, b, flags, expected) -> None:  # type: ignore[no-untyped-def]
    op = OpBuilder()
    left, right = op.input("a", "float32", a), op.input("b", "float32", b)
    y = op.FusedMatMul(left, right, domain=MICROSOFT, **flags)
    infer_shapes(op.model(y=y))
    assert y.shape == expected


def test_group_normalization_has_its_inputs_shape() -> None:
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", (2, 4, "n"))
    scale = op.initializer("scale", np.ones(4, np.float32))
    y = op.GroupNormalization(x, scale, scale, num_groups=2)
    assert y.shape == x.shape


TRANSFORMS = {
    "one side": ({"onesided": 1}, (), ("n", 8, 1), "[n,5,2]"),
    "one side, unknown": ({"onesided": 1}, (), ("n", "t", 1), "[n,None,2]"),
    "another length": ({}, (6,), ("n", "t", 2), "[n,6,2]"),
    "one side of another length": ({"onesided": 1}, (6,), ("n", 8, 1), "[n,4,2]"),
    "back": ({"onesided": 1, "inverse": 1}, (), ("n", 5, 2), "[n,8,1]"),
    "another axis": ({"onesided": 1}, (None, 0), ("n", 8, 1), "[None,8,2]"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_dft_has_its_output_length(name: str) -> None:
    attributes, numbers, sizes, expected = TRANSFORMS[name]
    op = OpBuilder(opset=20)
    more = [None if n is None else op.constant(np.array(n, np.int64)) for n in numbers]
    y = op.DFT(op.input("x", "float32", sizes), *more, **attributes)
    y.shape = None
    infer_shapes(op.model(y=y))
    assert str(y.shape) == expected
