"""The kinds of processors for which training graphs have faster forms, and which one this is.

    find_processor(probe)   # "x86-64-avx512", or "any"

A probe is a small graph whose output is the error of onnxruntime's blocked convolution. The names
of processors are written to saved programs.
"""

from __future__ import annotations

import functools
import math
import platform

import numpy as np

from onward.errors import OnwardError
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import BoundSession, to_numpy

ANY = "any"
AVX512 = "x86-64-avx512"  # onnxruntime's blocks have 16 channels
PROCESSORS = (AVX512,)  # with forms of their own


def find_processor(probe: bytes) -> str:
    """The kind of this machine's processor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ANY
    return AVX512 if _is_exact(probe) else ANY


@functools.cache
def _is_exact(probe: bytes) -> bool:
    """Whether the probe's error is 0: its sums of small integers are exact in float32."""
    try:
        session = BoundSession(probe, SessionOptions(log_severity_level=4, intra_op_num_threads=1))
        for name, argument in session.inputs.items():
            shape = [size for size in argument.shape or () if isinstance(size, int)]
            numbers = np.arange(math.prod(shape), dtype=np.float32) % 13 - 6
            session.bind_input(name, numbers.reshape(shape))
        (error,) = session.run(list(session.outputs))
    except OnwardError:  # this onnxruntime has no such kernels
        return False
    return float(to_numpy(error)) == 0
