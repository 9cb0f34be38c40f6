"""Every rule, from the tables of cases: right to rounding, on every engine, at any shape."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

import onward
from onward.gradients.model import SUFFIX, gradient
from onward.gradients.rule import NoGradient
from onward.gradients.table import GRADIENTS
from onward.passes.pipelines import PREPARE
from onward.providers.torch.lower import lower
from onward.providers.torch.table import HOST, KERNELS
from onward.testing import check_gradient
from tests.gradients.case import Case

FAMILIES = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
CASES: list[Case] = [
    case for name in FAMILIES for case in importlib.import_module(f"tests.gradients.{name}").CASES
]
TORCH = ["TorchExecutionProvider", "ReferenceExecutionProvider"]
# The other tests optimise the gradient before they run it.
AS_BUILT = onward.SessionOptions(graph_optimization_level=0)
OPSET = onnx.defs.onnx_opset_version()


def cases(wanted: Any) -> Any:
    """The cases of a test; those of one run one after another and share its cached gradients."""
    chosen = [case for case in CASES if wanted(case)]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name, scope="module")


@pytest.mark.sampled("case.operator", last=True)
@cases(lambda case: case.differences)
def test_a_gradient_is_the_central_difference(case: Case) -> None:
    check_gradient(
        case.model(),
        case.feeds,
        wrt=case.floats,
        providers=TORCH,
        options=AS_BUILT,
        tolerance=case.tolerance,
    )


@pytest.mark.sampled("case.operator")
@cases(lambda case: case.dynamic)
def test_a_gradient_is_the_same_when_sizes_are_unknown(case: Case) -> None:
    known, unknown = gradients(case), gradients(case, dynamic=True)
    for name, expected in known.items():
        np.testing.assert_allclose(unknown[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.sampled("case.operator")
@cases(lambda case: case.ort)
def test_stock_onnxruntime_computes_the_gradient(
    case: Case, capfd: pytest.CaptureFixture[str]
) -> None:
    """The model as it is saved, in a plain onnxruntime.InferenceSession, which warns of nothing."""
    expected = gradients(case)
    extended = extend(case, case.model(dtype=np.float32))
    data = ir.to_proto(extended).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [f"{name}{SUFFIX}" for name in case.floats]
    feeds = {n: case.typed(f, np.float32) for n, f in {**case.feeds, **cotangents(case)}.items()}
    feeds = {arg.name: feeds[arg.name] for arg in session.get_inputs()}
    for name, result in zip(case.floats, session.run(names, feeds)):
        scale = max(1.0, np.abs(expected[name]).max(initial=0.0))
        assert result.shape == expected[name].shape
        atol = case.ort_tolerance * scale
        np.testing.assert_allclose(result, expected[name], rtol=0, atol=atol, err_msg=name)
    lines = [line for line in capfd.readouterr().err.splitlines() if "onnxruntime" in line]
    assert [line for line in lines if "roialign.h" not in line] == []  # it says so of any RoiAlign


@pytest.mark.sampled("case.operator")
@cases(lambda case: case.autograd)
def test_torchs_autograd_through_our_kernels_agrees(case: Case) -> None:
    expected = gradients(case)
    graph = PREPARE(case.model()).graph
    module = lower(graph, KERNELS, HOST, torch.device("cpu"))
    feeds = {name: torch.tensor(feed) for name, feed in case.feeds.items()}
    for name in case.floats:
        feeds[name].requires_grad_()
    results = module(*(feeds[value.name] for value in graph.inputs if value.name in feeds))
    given = cotangents(case)
    total = torch.zeros(())
    for value, result in zip(graph.outputs, results):
        if f"{value.name}_cotangent" in given:
            total = total + (result * torch.tensor(given[f"{value.name}_cotangent"])).sum()
    found = torch.autograd.grad(total, [feeds[n] for n in case.floats], materialize_grads=True)
    for name, theirs in zip(case.floats, found):
        np.testing.assert_allclose(
            theirs.numpy(), expected[name], rtol=1e-7, atol=1e-9, err_msg=name
        )


def test_every_rule_has_a_case() -> None:
    shown = {case.operator for case in CASES}
    rules = {
        f"{domain}::{operator}" if domain else operator
        for domain, operator in GRADIENTS
        if not isinstance(GRADIENTS.find(domain, operator, OPSET), NoGradient)
    }
    rules -= {  # of calls that passes write: test_recognize_composites, test_fake_quantization,
        "onward::Attention",
        "onward::RoundToGrid",
        "onward::AllReduce",  # test_shared_batch_norms
        "onward::BatchMoments",
        "onward::Float8Linear",  # test_float8_products
    }
    assert rules - shown == set()
    assert shown - rules == set()


# -- the ways of running --------------------------------------------------------------------------


@functools.cache
def outputs(case: Case) -> dict[str, Any]:
    """The float outputs of a case, by name."""
    session = onward.InferenceSession(case.model(), providers=TORCH)
    names = [arg.name for arg in session.get_outputs() if arg.type == "tensor(double)"]
    return dict(zip(names, session.run(names, dict(case.feeds))))


def cotangents(case: Case) -> dict[str, Any]:
    """A random cotangent for each float output, under the name that its input has."""
    rng = np.random.default_rng(7)
    return {f"{n}_cotangent": rng.normal(size=y.shape) for n, y in outputs(case).items()}


def extend(case: Case, model: ir.Model) -> ir.Model:
    names = {name: f"{name}_cotangent" for name in outputs(case)}
    return gradient(model, names, case.floats)


@functools.cache
def gradients(case: Case, dynamic: bool = False) -> dict[str, Any]:
    """Each gradient in float64."""
    extended = extend(case, case.model(dynamic=dynamic))
    session = onward.InferenceSession(extended, providers=TORCH)
    wanted = [f"{name}{SUFFIX}" for name in case.floats]
    feeds = {**case.feeds, **cotangents(case)}
    feeds = {arg.name: feeds[arg.name] for arg in session.get_inputs()}
    return dict(zip(case.floats, session.run(wanted, feeds)))
