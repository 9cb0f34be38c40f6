"""How large the 8-bit weights of exact products may be on this machine (graph/int8_weights.py)."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.graph.int8_weights import CUT_OFF_FREE, LARGEST
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import BoundSession, to_numpy

_INPUTS, _OUTPUTS = 64, 16  # of the product that is tried: some kernels take whole blocks only


@functools.cache
def largest_weight() -> int:
    """The largest weight whose products are exact: 127, or 64; one product is tried."""
    op = OpBuilder(opset=18)
    x = op.input("x", "uint8", (4, _INPUTS))
    w = op.initializer("w", np.full((_INPUTS, _OUTPUTS), LARGEST, np.int8))
    model = ir.to_proto(op.model(y=op.MatMulInteger(x, w))).SerializeToString()
    session = BoundSession(model, SessionOptions(log_severity_level=4, intra_op_num_threads=1))
    session.bind_input("x", np.full((4, _INPUTS), 255, np.uint8))
    (y,) = session.run(["y"])
    is_exact = bool((to_numpy(y) == _INPUTS * 255 * LARGEST).all())
    return LARGEST if is_exact else CUT_OFF_FREE
