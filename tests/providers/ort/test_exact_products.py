"""Weights up to the largest one have exact products on this machine."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from onward.graph.int8_weights import CUT_OFF_FREE, LARGEST
from onward.providers.ort.exact_products import largest_weight


@pytest.mark.parametrize("sign", [-1, 1])
def test_products_of_the_largest_weight_are_exact(sign: int) -> None:
    weight = sign * largest_weight()
    assert abs(weight) in (CUT_OFF_FREE, LARGEST)
    op = onward.OpBuilder()
    x = op.input("x", "uint8", (3, 32))
    w = op.initializer("w", np.full((32, 16), weight, np.int8))
    session = onward.InferenceSession(op.model(y=op.MatMulInteger(x, w)))
    (y,) = session.run(None, {"x": np.full((3, 32), 255, np.uint8)})
    np.testing.assert_array_equal(y, np.full((3, 16), 32 * 255 * weight))
