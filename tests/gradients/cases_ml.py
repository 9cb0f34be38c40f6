"""Cases of rules/ml.py. They give float32 of float64: a central difference is right to percents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, positive, spread

_DOMAIN = "ai.onnx.ml"


def _scores(operator: str, note: str, **attributes: Any) -> Case:
    """Of a classifier, whose labels have no gradient."""
    differences = attributes.pop("differences", True)

    def build(op: Any, x: Any) -> Any:
        narrow = op.Cast(x, to=1)  # or the evaluator computes, against the definition, in float64
        _, y = getattr(op, operator)(narrow, domain=_DOMAIN, outputs=2, **attributes)
        return op.Cast(y, to=x.dtype)

    return Case(
        f"{_DOMAIN}::{operator}",
        build,
        {"x": normal(3, 4) * 0.5},
        note,
        autograd=False,
        differences=differences,
        tolerance=5e-2,
    )


def _machine(counts: list[int], kernel: str = "RBF", **more: Any) -> dict[str, Any]:
    """A support vector machine's attributes: so many vectors of each class."""
    total, classes = sum(counts), len(counts)
    rng = np.random.default_rng(7)
    return {
        "coefficients": rng.normal(size=total * max(classes - 1, 1)).tolist(),
        "support_vectors": rng.normal(size=total * 4).tolist(),
        "rho": rng.normal(size=max(classes * (classes - 1) // 2, 1)).tolist(),
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.2, 3.0],
        **more,
    }


_PROBIT = {  # of probabilities: scores between 0 and 1
    "coefficients": [0.05, -0.04, 0.03, 0.02] * 2,
    "intercepts": [0.3, 0.6],
    "classlabels_ints": [0, 1],
    "post_transform": "PROBIT",
    "differences": False,  # near a half, float32 cancels: test_ml.py takes wider steps
}


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
    *(
        _scores(
            "LinearClassifier",
            transform,
            coefficients=_W,
            intercepts=[0.5, -1.0],
            classlabels_ints=[3, 5],
            post_transform=transform,
        )
        for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ),
    _scores("LinearClassifier", "PROBIT", **_PROBIT),
    *(
        _ml(
            "SVMRegressor",
            kernel,
            {"x": normal(3, 4)},
            n_supports=5,
            **_machine([5], kernel),
        )
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    *(
        _scores(
            "SVMClassifier",
            f"{kernel} of three",
            vectors_per_class=[2, 1, 2],
            classlabels_ints=[0, 1, 2],
            **_machine([2, 1, 2], kernel),
        )
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
]
