"""Gradients of real models: of every parameter, on stock onnxruntime, checked in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.gradients.backward import FLOATS
from onward.gradients.model import gradient
from onward.graph.scopes import graphs_of, walk
from onward.passes.pipelines import PREPARE
from onward.testing import check_gradient
from tests.real.catalog import MODELS

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]
STOCK = ["CPUExecutionProvider"]
BY_NAME = {model.name: model for model in MODELS}
# integers carry the gradients straight through: no difference of the outputs shows that
ROUNDED = {"kinematics-int8"}
# on noise it gives 10^-6 everywhere, and stock onnxruntime's Sigmoid is 10^-7 off wherever it is
BEFORE_SIGMOID = {"text-detection"}
# variances and powers near 0 bend sharply: what differences are taken over, in float64
STEP = {"whisper-features": 1e-11, "orientation": 1e-10}


def opened(name: str) -> tuple[ir.Model, dict[str, Any]]:
    """The model, prepared, and feeds for it."""
    model = BY_NAME[name]
    feeds = model.feeds(onnxruntime.InferenceSession(model.path(), providers=STOCK))
    prepared = PREPARE(onward.load(model.path()))
    if name in BEFORE_SIGMOID:
        last = prepared.graph.outputs[0].producer()
        assert last is not None and last.op_type == "Sigmoid"
        prepared.graph.outputs[0] = last.inputs[0]
    return prepared, feeds


def parameters(model: ir.Model) -> list[str]:
    """Every float initializer of more than one element that is a weight, subgraphs included."""
    sizes = {
        value
        for node in walk(model.graph)
        if node.op_type in ("Resize", "Upsample")
        for value in node.inputs[1:]
    }
    return [
        name
        for graph in graphs_of(model)
        for name, value in graph.initializers.items()
        if value.dtype in FLOATS and value.const_value.size > 1 and value not in sizes
    ]


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ROUNDED])
def test_the_gradient_of_every_parameter_is_right(name: str) -> None:
    """Its float64 copy's to 1e-4 of central differences, stock onnxruntime's that in float32."""
    model, feeds = opened(name)
    names = parameters(model)
    assert names
    check_gradient(
        model,
        feeds,
        wrt=names,
        providers=STOCK,
        directions=1,
        step=STEP.get(name, 1e-7),
        tolerance=1e-4,
        double=True,
    )


def test_the_gradient_of_a_quantised_model_is_near_its_float_twins() -> None:
    _, feeds = opened("kinematics")
    (given,) = feeds.values()
    found = []
    for name in ("kinematics", "kinematics-int8"):
        model, _ = opened(name)
        (x,) = (str(value.name) for value in model.graph.inputs)
        (y,) = (str(value.name) for value in model.graph.outputs)
        (result,) = onward.InferenceSession(model).run([y], {x: given})
        session = onward.InferenceSession(
            gradient(model, {y: "dy"}, [x, *parameters(model)]), providers=STOCK
        )
        _, dx, *others = session.run(None, {x: given, "dy": np.ones_like(result)})
        assert all(np.isfinite(each).all() for each in others)
        found.append(dx.ravel())
    twin, ours = found
    assert twin @ ours > 0.9 * np.linalg.norm(twin) * np.linalg.norm(ours)
