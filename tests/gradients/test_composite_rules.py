"""Gradients as calls: what is inlined is what the rules write without calls."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.scopes import bodies
from onward.passes.composites import inline_calls, is_call
from onward.passes.pipelines import PREPARE, TRAINING
from tests.gradients import cases_activation, cases_contrib, cases_conv, cases_loss, cases_norm
from tests.gradients.case import Case

FAMILIES = (cases_activation, cases_contrib, cases_conv, cases_loss, cases_norm)
CASES: list[Case] = [case for family in FAMILIES for case in family.CASES]
CALLS = {
    *("BatchNormalization", "Conv", "ConvTranspose", "Gelu", "GroupNormalization", "HardSwish"),
    *("InstanceNormalization", "LayerNormalization", "LogSoftmax", "Mish", "RMSNormalization"),
    *("Softmax", "SoftmaxCrossEntropyLoss", "Swish"),
}


def differentiated(case: Case, *, composites: bool, **settings: Any) -> ir.Model:
    """The model of a case with its gradients, prepared, not yet simplified."""
    model = PREPARE(case.model(**settings))
    outputs = {
        str(y.name): f"d{y.name}" for y in model.graph.outputs if y.dtype.is_floating_point()
    }
    extend(model, outputs, case.floats, GRADIENTS, allow_unused=True, composites=composites)
    return model


def expressions(graph: ir.Graph, known: dict[ir.Value, Hashable] | None = None) -> list[Hashable]:
    """What each output of a graph is computed by; values that nodes make have no names in it."""
    seen = {} if known is None else known
    for value in graph.inputs:
        seen[value] = ("input", value.name if known is None else list(graph.inputs).index(value))

    def of(value: ir.Value | None) -> Hashable:
        if value is None or value in seen:
            return None if value is None else seen[value]
        if value.const_value is not None:
            array = value.const_value.numpy()
            return str(array.dtype), array.shape, array.tobytes()
        raise AssertionError(f"nothing makes {value}")

    for node in graph:
        inner = tuple(tuple(expressions(body, seen)) for body in bodies(node))
        plain = tuple(
            (name, repr(a.value))
            for name, a in sorted(node.attributes.items())
            if a.type is not ir.AttributeType.GRAPH
        )
        key = hash((node.domain, node.op_type, tuple(of(x) for x in node.inputs), plain, inner))
        for index, value in enumerate(node.outputs):
            seen[value] = (key, index, bool(value.name))
    return [of(value) for value in graph.outputs]


def operators(model: ir.Model) -> list[str]:
    return sorted(node.op_type for node in model.graph)


@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_inlined_calls_are_the_graph_without_calls(case: Case, dynamic: bool) -> None:
    if dynamic and not case.dynamic:
        dynamic = False
    settings: dict[str, Any] = {"dtype": np.float32, "dynamic": dynamic}
    plain = TRAINING(differentiated(case, composites=False, **settings))
    called = differentiated(case, composites=True, **settings)
    if case.operator in CALLS:
        assert any(is_call(node) for graph in called.graphs() for node in graph)
    inlined = TRAINING(inline_calls(called))
    assert not inlined.functions and "onward" not in inlined.opset_imports
    assert operators(inlined) == operators(plain)
    assert expressions(inlined.graph) == expressions(plain.graph)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_calls_that_are_kept_through_training_passes_inline_to_the_same_values(case: Case) -> None:
    plain = TRAINING(differentiated(case, composites=False, dtype=np.float32))
    called = TRAINING(differentiated(case, composites=True, dtype=np.float32))
    inlined = TRAINING(inline_calls(called))
    assert operators(inlined) == operators(plain)
    assert expressions(inlined.graph) == expressions(plain.graph)
