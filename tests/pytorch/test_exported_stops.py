"""`detach`, `no_grad` and padding rows in gradient graphs: no gradient flows through them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import onward
from onward.pytorch.gradient_export import export_gradient_graph
from tests.pytorch.test_session_stops_gradients import CASES, Y

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, x = CASES[name]
    module = make()
    export_gradient_graph(module, nn.functional.cross_entropy, x, Y, tmp_path / "g.onnx")
    nn.functional.cross_entropy(module(x), Y).backward()
    feeds = {"input": x.numpy(), "labels": Y.numpy()}
    feeds |= {n: p.detach().numpy() for n, p in module.named_parameters()}
    session = onward.InferenceSession(tmp_path / "g.onnx")
    wanted = {each.name for each in session.get_inputs()}
    found = session.run(None, {n: x for n, x in feeds.items() if n in wanted})
    by_name = dict(zip([each.name for each in session.get_outputs()], found))
    for n, p in module.named_parameters():
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        np.testing.assert_allclose(by_name[f"{n}_grad"], expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_an_exported_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, x = CASES["detach"]
    module = make()
    onward.pytorch.export(module, (x,), tmp_path / "m.onnx")
    graph = onward.gradient(tmp_path / "m.onnx", {"output": "dy"}, ["first.weight"])
    session = onward.InferenceSession(graph)
    feeds = dict(
        zip([each.name for each in session.get_inputs()], (x.numpy(), np.ones((2, 3), "f4")))
    )
    module(x).sum().backward()
    expected = module.get_parameter("first.weight").grad
    np.testing.assert_allclose(session.run(None, feeds)[-1], expected, rtol=1e-5, atol=1e-6)
