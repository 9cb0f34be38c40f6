"""Parameters that torch's older exporter has merged are separated."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import onward
from onward.passes.exporters.merged_parameters import module_of, separate_merged
from tests.sessions.training.exported_models import exported, exported_by_torchscript


def model(body: str, names: str = "a.weight", producer: str = "pytorch") -> ir.Model:
    """y from x, both float[2, 2], and 2 x 2 weights that hold 1 to 4."""
    weights = ", ".join(f"float[2, 2] {name} = {{1, 2, 3, 4}}" for name in names.split())
    text = f"""<ir_version: 10, opset_import: ["": 20], producer_name: "{producer}">
    g (float[2, 2] x) => (float[2, 2] y) <{weights}> {{ {body} }}"""
    return ir.from_proto(onnx.parser.parse_model(text))


def renamed(made: ir.Model, names: dict[str, str]) -> ir.Model:
    """With other names, which the text format cannot write: of weights, and of nodes by outputs."""
    for node in made.graph:
        node.name = names.get(str(node.outputs[0].name), node.name)
    copies = (node.outputs[0] for node in made.graph if node.op_type == "Identity")
    for value in [*made.graph.initializers.values(), *copies]:
        value.name = names.get(str(value.name), value.name)
    return made


TWO = "w2 = Identity(w1) h = MatMul(x, w1) y = MatMul(h, w2)"
COMPUTED = {"w1": "onnx::MatMul_1", "w2": "onnx::MatMul_2"}


@pytest.mark.parametrize(
    ("names", "producer", "separated"),
    [
        ({"w1": "1.weight", "w2": "4.weight"}, "pytorch", True),
        ({"w1": "scale", "w2": "other_scale"}, "pytorch", True),
        ({"w1": "1.weight", "w2": "/Identity_output_0"}, "pytorch", False),  # torch.clone
        ({"w1": "w1", "w2": "w2"}, "someone", False),  # a tie that somebody has written
        ({"w1": "1.weight", "w2": "4.weight", "y": "/4/MatMul"}, "someone", True),
        ({"w1": "1.weight", "w2": "4.weight", "y": "/5/MatMul"}, "someone", False),
    ],
)
def test_merged_parameters_are_recognised_by_name(
    names: dict[str, str], producer: str, separated: bool
) -> None:
    made = renamed(model(TWO, "w1", producer), names)
    assert separate_merged(made) == {}
    assert (names["w2"] in made.graph.initializers) == separated
    assert len(made.graph) == (2 if separated else 3)


@pytest.mark.parametrize(
    ("first", "second", "body", "shared", "uncertain"),
    [
        ("/a/MatMul", "/b/MatMul", TWO, False, True),
        ("/a/MatMul", "/a_1/MatMul", TWO, True, False),
        ("/l.0/l.0.0/a/MatMul", "/l.0/l.0.0/a_2/MatMul", TWO, True, False),
        ("/a_1/MatMul", "/a_2/MatMul", TWO, False, True),
        ("/a/MatMul", "/b/MatMul", TWO.replace("y =", "t =") + " y = Add(t, b)", False, True),
        ("/a/MatMul", "/b/MatMul", TWO.replace("y =", "t =") + " y = Add(t, a)", True, False),
    ],
    ids=["modules", "called again", "in a Sequential", "two layers", "own bias", "its bias too"],
)
def test_computed_weights_are_shared_by_module_names(
    first: str, second: str, body: str, shared: bool, uncertain: bool
) -> None:
    nodes = {"h": first, "t" if "t =" in body else "y": second, **COMPUTED}
    made = renamed(
        model(body, f"w1 {body[-2]}" if "Add" in body else "w1"),
        {**nodes, "a": "a.bias", "b": "b.bias"},
    )
    made.graph[-1].name = "/b/Add" if made.graph[-1].op_type == "Add" else second
    found = separate_merged(made)
    assert found == ({"onnx::MatMul_2": "onnx::MatMul_1"} if uncertain else {})
    assert ("onnx::MatMul_2" in made.graph.initializers) == (not shared)


def test_uniform_computed_weights_are_separated() -> None:
    made = renamed(model(TWO, "w1"), COMPUTED)
    tensor = ir.tensor(np.zeros((2, 2), np.float32), name="onnx::MatMul_1")
    made.graph.initializers["onnx::MatMul_1"].const_value = tensor
    assert separate_merged(made) == {}
    assert "onnx::MatMul_2" in made.graph.initializers


def test_a_weight_that_the_model_returns_stays_a_copy() -> None:
    made = model("y = Identity(w)", "w")
    assert separate_merged(made) == {} and len(made.graph) == 1


@pytest.mark.parametrize(
    ("scope", "path"),
    [("/a", "a"), ("/net/net.0/norm", "net.0.norm"), ("/l.0/l.0.1/l", "l.0.1.l"), ("", "")],
)
def test_a_scope_names_its_module(scope: str, path: str) -> None:
    assert module_of(scope) == path


def test_a_separated_export_has_all_parameters_and_computes_the_same() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)]
    network = nn.Sequential(*layers).eval()
    x = torch.randn(3, 4)
    original = exported_by_torchscript(network, x)
    made = ir.from_proto(original)
    assert separate_merged(made) == {}
    assert {name for name, _ in network.named_parameters()} == {*made.graph.initializers}
    feeds = {"x": x.numpy()}
    results = [
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, feeds)[0]
        for each in (original, ir.to_proto(made))
    ]
    np.testing.assert_array_equal(*results)


class Normed(nn.Module):
    """Two layers of torch's, fresh: their scales are ones, their biases zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.tanh(self.inner(x)))
        return self.second(torch.tanh(self.outer(x)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def optimized() -> onnx.ModelProto:
    torch.manual_seed(0)
    return exported(Normed(), torch.randn(2, 3, 4), optimize=True)


@pytest.mark.integration
def test_parameters_merged_by_the_newer_exporter_have_separate_gradients(
    optimized: onnx.ModelProto,
) -> None:
    names = ["first.weight", "second.weight"]
    torch.manual_seed(0)
    apart = exported(Normed(), torch.randn(2, 3, 4), optimize=False)
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(2, 3, 4)).astype(np.float32) for name in ("x", "dy")}
    found, expected = (
        onward.InferenceSession(onward.gradient(model, {"y": "dy"}, names)).run(
            [f"{name}_grad" for name in names], feeds
        )
        for model in (optimized, apart)
    )
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert not np.allclose(found[0], found[1])
