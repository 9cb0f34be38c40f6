"""Test once per process whether the installed onnxruntime runs fused steps correctly.

A fused step reads memory that the same run has written (`fused_step.py`). An engine that writes an
output to other memory and copies it at the end would silently train on old gradients. So a small
step is run first, and its results are compared with numpy.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.optimizers.vector_pair_names import pairs_of
from onward.programs.program import LOSS
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import BoundSession
from onward.providers.ort.training.lowered import MEASURE, UPDATE, UPDATED

Array = np.ndarray[Any, Any]

SIZE = 257
RATE, STEP = 0.1, 3
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01  # AdamW's own
GIVEN, WEIGHT, GRADIENT = "x", "w", "w_grad"  # names in the probe's graph, whose loss is sum(x w)
BLOCKS = (("exp_sum", "gradients"), ("exp_sum_sq", "scratch_0"), ("parameters", "scratch_1"))

log = logging.getLogger("onward")


@functools.cache
def is_sound(graph: bytes) -> bool:
    """Whether the probe updates correctly, and not at all if gradients are not finite."""
    try:
        sound = _Probe(graph).is_right()
    except OnwardError:
        sound = False
    if not sound:
        log.warning(
            "this onnxruntime does not run fused training steps correctly: gradients and updates "
            "run separately, which is slower"
        )
    return sound


class _Probe:
    """The small step, bound to memory like a real one."""

    def __init__(self, graph: bytes) -> None:
        self._session = BoundSession(
            graph, SessionOptions(log_severity_level=4, intra_op_num_threads=1)
        )
        generator = np.random.Generator(np.random.SFC64(0))
        before = UPDATE.format(0)
        self._rows: dict[str, Array] = {}
        for block in BLOCKS:
            matrix = generator.random((len(block), SIZE), np.float32)
            self._rows |= zip(block, matrix)
            for i, name in pairs_of(block):
                self._session.bind_input(before + name, matrix[i : i + 2])
        for name, row in self._rows.items():
            if before + name in self._session.inputs:
                self._session.bind_input(before + name, row)
            if name != "gradients":
                self._session.bind_output(f"{before}new_{name}", row)
        self._given = generator.random(SIZE, np.float32)
        self._updated = np.zeros((), np.bool_)
        scalars = {"learning_rate": np.array(RATE, np.float32), "step": np.array(STEP)}
        for name, scalar in scalars.items():
            self._session.bind_input(before + name, scalar)
        self._session.bind_input(GIVEN, self._given)
        self._session.bind_input(WEIGHT, self._rows["parameters"])
        self._session.bind_output(GRADIENT, self._rows["gradients"])
        self._session.bind_output(LOSS, np.zeros((), np.float32))
        self._session.bind_output(MEASURE, np.zeros((), np.float32))
        self._session.bind_output(UPDATED, self._updated)

    def is_right(self) -> bool:
        wanted = _expected(self._rows, self._given)
        self._session.run()
        if not self._updated or not self._has(wanted, 1e-5):
            return False
        kept = {name: self._rows[name].copy() for name in wanted}
        self._given[7] = np.nan
        self._session.run()
        return not self._updated and self._has(kept, 0.0)

    def _has(self, wanted: dict[str, Array], tolerance: float) -> bool:
        return all(
            np.allclose(self._rows[name], tensor, rtol=tolerance, atol=tolerance)
            for name, tensor in wanted.items()
        )


def _expected(rows: dict[str, Array], g: Array) -> dict[str, Array]:
    """AdamW in numpy, with moments as sums."""
    b1, b2 = BETAS
    p, m, v = (rows[name].astype(np.float64) for name in ("parameters", "exp_sum", "exp_sum_sq"))
    m, v = b1 * m + g, b2 * v + g.astype(np.float64) ** 2
    first = (1 - b1) * m / (1 - b1**STEP)
    second = np.sqrt((1 - b2) * v) / math.sqrt(1 - b2**STEP) + EPS
    p = (1 - RATE * DECAY) * p - RATE * first / second
    return {"parameters": p, "exp_sum": m, "exp_sum_sq": v}
