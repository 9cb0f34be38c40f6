"""Half precision: every rule whose operator takes float16 or bfloat16, from the tables of cases.

The graph is well typed, a gradient has its input's type, and it is close to the gradient that the
same numbers have in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.gradients.model import SUFFIX
from tests.gradients.case import Case
from tests.gradients.test_rules import CASES, TORCH, cotangents, extend

# how far a gradient may be off, relative to the largest: some ten roundings
TOLERANCES = {ir.DataType.FLOAT16: 1e-2, ir.DataType.BFLOAT16: 6e-2}

MISTYPED = {"MeanVarianceNormalization"}  # onnx's own function adds a float32 to any type
UNREAD = {("SplitToSequence", ir.DataType.BFLOAT16)}  # no operator reads what it gives
WIDE = {  # defined only for float32, or for float32 and float64
    "DynamicQuantizeLinear",
    "ai.onnx.ml::ArrayFeatureExtractor",
    "ai.onnx.ml::FeatureVectorizer",
    "ai.onnx.ml::Imputer",
    "ai.onnx.ml::LinearClassifier",
    "ai.onnx.ml::LinearRegressor",
    "ai.onnx.ml::Normalizer",
    "ai.onnx.ml::SVMClassifier",
    "ai.onnx.ml::SVMRegressor",
    "ai.onnx.ml::Scaler",
}


def accepts(case: Case, kind: ir.DataType) -> bool:
    """Whether the operator is defined for a type; who has no schema is defined for both."""
    domain, _, name = case.operator.rpartition("::")
    try:
        schema = onnx.defs.get_schema(name, case.opset if not domain else 1, domain)
    except onnx.defs.SchemaError:
        return True
    spelled = f"tensor({kind.name.lower()})"
    wanted = {spelled, f"seq({spelled})", f"optional({spelled})"}
    types = {each for formal in (*schema.inputs, *schema.outputs) for each in formal.types}
    return bool(wanted & types) and (name, kind) not in UNREAD


def chosen() -> Iterator[Any]:
    """The first case of each rule, in each type that its operator takes."""
    seen = set()
    for case in CASES:
        if case.operator not in seen:
            seen.add(case.operator)
            for kind in TOLERANCES:
                if accepts(case, kind):
                    yield pytest.param(case, kind, id=f"{case.name}, {kind.name.lower()}")


@pytest.mark.sampled("case.operator")
@pytest.mark.sampled("kind")
@pytest.mark.parametrize(("case", "kind"), list(chosen()))
def test_a_gradient_in_half_precision_is_that_of_float32(case: Case, kind: ir.DataType) -> None:
    narrow = kind.numpy()
    model = extend(case, case.model(dtype=narrow))
    if case.operator not in MISTYPED:
        onnx.shape_inference.infer_shapes(ir.to_proto(model), check_type=True, strict_mode=True)
    feeds = {n: case.typed(f, narrow) for n, f in {**case.feeds, **cotangents(case)}.items()}
    expected = results(case, extend(case, case.model(dtype=np.float32)), feeds)
    for name, found in results(case, model, feeds).items():
        assert found.dtype == narrow, name
        assert typed(model, f"{name}{SUFFIX}") == typed(model, name) == kind
        exact = expected[name]
        atol = TOLERANCES[kind] * max(1.0, np.abs(exact).max(initial=0.0))
        np.testing.assert_allclose(found.astype(np.float32), exact, rtol=0, atol=atol, err_msg=name)


def test_every_operator_is_tried_that_takes_half_precision() -> None:
    tried = {param.values[0].operator for param in chosen()}
    assert {case.operator for case in CASES} - tried == WIDE


def typed(model: ir.Model, name: str) -> ir.DataType | None:
    values = (*model.graph.inputs, *model.graph.outputs)
    return next(value.dtype for value in values if value.name == name)


def results(case: Case, model: ir.Model, feeds: dict[str, Any]) -> dict[str, Any]:
    """The gradients; each feed in the type that the model takes it in."""
    session = onward.InferenceSession(model, providers=TORCH)
    kinds = {str(x.name): x.dtype.numpy() for x in model.graph.inputs if x.dtype is not None}
    given = {name: feeds[name].astype(kind) for name, kind in kinds.items()}
    names = [f"{name}{SUFFIX}" for name in case.floats]
    return dict(zip(case.floats, session.run(names, given)))
