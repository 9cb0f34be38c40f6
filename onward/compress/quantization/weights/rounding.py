"""Round one weight: choose the scheme of its blocks and the method, by the error of the outputs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from onward.compress.quantization.weights.blocks import Array, Blocks
from onward.compress.quantization.weights.gptq import invert_factor, round_by_gptq
from onward.compress.quantization.weights.scales import SCHEMES, round_weights

METHODS = ("auto", "rtn", "mse", "gptq", "awq")
_SAMPLED_ROWS = 192  # rows that errors are estimated on
_SAMPLED_WEIGHTS = 1 << 18  # and their weights, about
_OFFSETS_PAY = 0.1  # of the symmetric error: weights that lie on a grid with offsets, as GGUF's do
_ZEROS_PAY = 0.8
_EXACT = 1e-7  # a relative error that nothing has to be done about


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is known of the data that a weight multiplies; None: not measured.

    Attributes:
        squares: (inputs,): the sum of squares of each input
        moments: (inputs, inputs): X^T X
    """

    squares: Array | None = None
    moments: Array | None = None

    def divided(self, factors: Array) -> Inputs:
        """What is known of the data when each input is divided by its factor."""
        squares = self.squares if self.moments is None else np.diag(self.moments)
        return Inputs(None if squares is None else squares / factors**2)

    def with_lookups(self) -> Inputs:
        """What is known if rows of the weight are looked up, too.

        Whatever follows a lookup reads all of its numbers: each counts as one more input, of the
        mean square of those that are multiplied.
        """
        if self.moments is not None:
            mean = np.diag(self.moments).mean()
            return Inputs(moments=self.moments + mean * np.eye(len(self.moments), dtype=np.float32))
        return Inputs(None if self.squares is None else self.squares + self.squares.mean())

    @functools.cached_property
    def factor(self) -> Array:
        """What GPTQ needs of the moments; layers with the same inputs share it."""
        assert self.moments is not None
        return invert_factor(self.moments)

    @functools.cached_property
    def importance(self) -> Array | None:
        """The weight of the error of each input: its share of the squares, never 0."""
        squares = self.squares if self.moments is None else np.diag(self.moments)
        if squares is None or not np.isfinite(squares).all() or squares.sum() <= 0:
            return None
        shares = squares / squares.mean()
        return np.asarray(shares + 0.01, np.float32)


def sample_rows(w: Array, most: int = _SAMPLED_ROWS) -> Array:
    """Some rows of a matrix, the same ones each time."""
    most = min(most, max(16, _SAMPLED_WEIGHTS // max(w.shape[1], 1)))
    step = max(1, len(w) // most)
    return np.asarray(w[::step][:most], np.float32)


def relative_error(w: Array, blocks: Blocks, importance: Array | None) -> float:
    """|x (w - w')^T|^2 / |x w^T|^2 for inputs of these squares that do not correlate."""
    weight = np.float32(1) if importance is None else importance
    lost = float((weight * (blocks.widen() - w) ** 2).sum(dtype=np.float64))
    return lost / max(float((weight * w**2).sum(dtype=np.float64)), 1e-30)


def estimate_error(w: Array, bits: int, block: int, scheme: str) -> float:
    """The relative error of some rows of a matrix."""
    rows = sample_rows(w)
    return relative_error(rows, round_weights(rows, bits, block, scheme), None)


def is_exact(w: Array, bits: int, block: int, scheme: str) -> bool:
    """Whether a matrix loses nothing: it has been rounded in this way before."""
    return estimate_error(w, bits, block, scheme) <= _EXACT


def choose_scheme(w: Array, bits: int, block: int, *, offsets: bool) -> str:
    """The scheme of a matrix: symmetric, unless another one is worth its bytes."""
    if bits == 8:
        return "symmetric"
    errors = {scheme: estimate_error(w, bits, block, scheme) for scheme in SCHEMES}
    if (
        offsets
        and bits == 4
        and errors["offsets"] <= _OFFSETS_PAY * errors["symmetric"]
        and errors["symmetric"] > _EXACT
    ):
        return "offsets"
    return "zeros" if errors["zeros"] <= _ZEROS_PAY * errors["symmetric"] else "symmetric"


def round_matrix(
    w: Array, bits: int, block: int, scheme: str, method: str, inputs: Inputs
) -> tuple[Blocks, str]:
    """Round a matrix; the method that was used: for "auto", the one of the least error."""
    importance = inputs.importance
    if method == "rtn":
        return round_weights(w, bits, block, scheme, search=False), "rtn"
    by_scale = round_weights(w, bits, block, scheme, importance=importance)
    if method in ("mse", "awq") or inputs.moments is None:
        return by_scale, "mse"
    w = np.asarray(w, np.float32)
    if relative_error(w, by_scale, importance) <= _EXACT:
        return by_scale, "mse"
    by_gptq = round_by_gptq(w, inputs.factor, bits, block, scheme)
    if method == "auto" and output_error(by_scale.widen() - w, inputs.moments) <= output_error(
        by_gptq.widen() - w, inputs.moments
    ):
        return by_scale, "mse"
    return by_gptq, "gptq"


def output_error(change: Array, moments: Array) -> float:
    """tr(D H D^T), with D the change of the weights."""
    return float(((change @ moments) * change).sum(dtype=np.float64))
