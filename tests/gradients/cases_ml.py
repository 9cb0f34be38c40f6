"""Cases of rules/ml.py. They give float32 of float64: a central difference is right to percents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, positive, spread

_DOMAIN = "ai.onnx.ml"


def _ml(operator: str, note: str, feeds: dict[str, Any], **attributes: Any) -> Case:
    differences = attributes.pop("differences", True)

    def build(op: Any, **inputs: Any) -> Any:
        y = getattr(op, operator)(*inputs.values(), domain=_DOMAIN, **attributes)
        return op.Cast(y, to=next(iter(inputs.values())).dtype)

    return Case(
        f"{_DOMAIN}::{operator}",
        build,
        feeds,
        note,
        autograd=False,  # torch has no kernels for them: ONNX's own evaluator runs them
        differences=differences,
        tolerance=5e-2,
    )


_W = [float(w) for w in np.arange(8) * 0.25 - 1]

CASES = [
    _ml(
        "Scaler", "", {"x": normal(3, 4)}, scale=[0.5, 2.0, -1.0, 3.0], offset=[1.0, 0.0, 2.0, 0.5]
    ),
    _ml("Scaler", "one scale", {"x": normal(3, 4)}, scale=[0.5], offset=[1.0]),
    _ml("Imputer", "", {"x": spread(3, 4)}, imputed_value_floats=[1.0, 2.0, 3.0, 4.0]),
    _ml(
        "Imputer",
        "of what is no number",
        {"x": np.where(spread(3, 4) > 0.3, np.nan, spread(3, 4))},
        imputed_value_floats=[1.0],
        replaced_value_float=math.nan,
        differences=False,  # there is none of nan
    ),
    _ml(
        "FeatureVectorizer",
        "",
        {"a": normal(3, 4), "b": normal(3, 2)},
        inputdimensions=[4, 2],
    ),
    *(_ml("Normalizer", norm, {"x": positive(3, 4)}, norm=norm) for norm in ("MAX", "L1", "L2")),
    _ml(
        "LinearRegressor",
        "",
        {"x": normal(3, 4)},
        coefficients=_W,
        intercepts=[0.5, -1.0],
        targets=2,
    ),
]
