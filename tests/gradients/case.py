"""A case: one small graph, feeds in float64, and what it shows the gradient of.

    Case("Sin", lambda op, x: op.Sin(x), {"x": normal(2, 3)})

The same case is run in several ways (test_rules.py): central differences in float64, torch's
autograd, stock onnxruntime in float32, shapes known and unknown.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

import onward
from onward.passes import token_functions
from onward.passes.random_functions import FUNCTIONS, calls, register

OPSET = 28  # the newest: rules are written in it


@dataclass(frozen=True, eq=False)  # by identity: results are kept by case
class Case:
    """A graph of one operator (or a few), the feeds, and in which ways it can be checked."""

    operator: str  # whose rule is shown; "com.microsoft::Gelu" for another domain's
    build: Callable[..., Any]  # (op, **inputs) -> an output, or a tuple of them
    feeds: Mapping[str, Any]
    note: str = ""  # what is special; part of the test's name
    wrt: tuple[str, ...] | None = None  # None: every float input
    opset: int = OPSET
    ort: bool = True  # whether stock onnxruntime has float32 kernels for all of it
    dynamic: bool = True  # whether it is also checked with unknown sizes
    autograd: bool = True  # whether torch's autograd gets through our kernels
    differences: bool = True  # False: the rule is a convention (straight through), not a limit
    tolerance: float = 1e-6  # of central differences in float64
    ort_tolerance: float = 1e-4
    fixed: tuple[str, ...] = ()  # inputs whose sizes stay known in the dynamic check

    @property
    def name(self) -> str:
        return f"{self.operator}, {self.note}" if self.note else self.operator

    @property
    def floats(self) -> tuple[str, ...]:
        """What is differentiated."""
        floats = tuple(n for n, feed in self.feeds.items() if feed.dtype == np.float64)
        return self.wrt if self.wrt is not None else floats

    def model(self, *, dynamic: bool = False, dtype: Any = np.float64) -> ir.Model:
        """The graph in this float type; unknown sizes are named by their number."""
        op = onward.OpBuilder(opset=self.opset)
        inputs = {}
        for name, feed in self.feeds.items():
            sizes = (
                [f"n{n}" for n in feed.shape] if dynamic and name not in self.fixed else feed.shape
            )
            inputs[name] = op.input(name, self.typed(feed, dtype).dtype, sizes)
        built = self.build(op, **inputs)
        outputs = built if isinstance(built, tuple) else (built,)
        model = op.model(**{f"y{i}": y for i, y in enumerate(outputs) if y is not None})
        for call in calls(model.graph, *FUNCTIONS):
            register(model, call.op_type)
        for call in calls(model.graph, *token_functions.FUNCTIONS):
            token_functions.register(model, call.op_type)
        return model

    def typed(self, feed: Any, dtype: Any) -> Any:
        return feed.astype(dtype) if feed.dtype == np.float64 else feed


def normal(*shape: int, seed: int | None = None) -> Any:
    """Standard normal numbers: the same for the same shape and seed."""
    return _rng(shape, seed).normal(size=shape)


def positive(*shape: int, seed: int | None = None) -> Any:
    """Numbers in 0.5 .. 2: for domains that end at zero."""
    return _rng(shape, seed).uniform(0.5, 2.0, size=shape)


def between(low: float, high: float, *shape: int, seed: int | None = None) -> Any:
    """Numbers inside an open interval."""
    return _rng(shape, seed).uniform(low, high, size=shape)


def spread(*shape: int, seed: int | None = None, gap: float = 0.1) -> Any:
    """Numbers at least `gap` apart and from zero, shuffled: no ties, no kinks within a step."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) - count // 2 + 0.5) * gap
    return _rng(shape, seed).permutation(numbers).reshape(shape)


def integers(low: int, high: int, *shape: int, seed: int | None = None) -> Any:
    return _rng(shape, seed).integers(low, high, size=shape)


def _rng(shape: tuple[int, ...], seed: int | None) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr((shape, seed)).encode()))
