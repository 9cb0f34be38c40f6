"""How large the 8-bit weights of exact products may be on this machine.

Processors of x86-64 without VNNI multiply bytes in pairs, and add both products in 16 bits: two of
255 * 127 are cut off at 32,767. onnxruntime and OpenVINO use that instruction. With weights up to
64 no pair is cut off: 2 * 255 * 64 = 32,640.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import BoundSession, to_numpy

LARGEST = 127  # symmetric: -128 is not used
CUT_OFF_FREE = 64
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
