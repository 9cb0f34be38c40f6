"""ModelLimits: each limit refuses, is named in the error, and can be raised."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import InvalidModel, LimitExceeded, OptionError
from onward.graph.files import load
from onward.graph.limits import ModelLimits
from onward.graph.scan.model_scan import scan_model
from onward.providers.ort import folding_limit
from tests.models import mlp, needs, serialized

FLOAT = TensorProto.FLOAT


def model(*nodes: onnx.NodeProto, constants: Any = (), shape: Any = (2,), opset: int = 20) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    imports = [helper.make_opsetid("", opset)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString())


def filled(size: int) -> bytes:
    """x + max of a constant of so many elements."""
    return model(
        helper.make_node("ConstantOfShape", ["s"], ["big"], "bomb"),
        helper.make_node("ReduceMax", ["big"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
        constants=[("s", np.array([size]))],
    )


CASES: dict[str, tuple[Callable[[], bytes], int]] = {  # limit: a model, and what it has
    "file_bytes": (lambda: serialized(mlp()), len(serialized(mlp()))),
    "nodes": (lambda: serialized(mlp()), 3),
    "node_values": (lambda: serialized(mlp()), 2),
    "name_bytes": (lambda: needs("Neg"), len("the_node")),
    "elements": (lambda: model(helper.make_node("Neg", ["x"], ["y"]), shape=(20, 50)), 1000),
    "folded_elements": (lambda: filled(1000), 1000),
    "expanded_nodes": (lambda: serialized(mlp()), 3),
}


@pytest.mark.parametrize("limit", CASES)
def test_limits_are_inclusive(limit: str) -> None:
    build, value = CASES[limit]
    data = build()
    at = ModelLimits(**{limit: value})
    scan_model(data, at)
    onward.InferenceSession(data, onward.SessionOptions(limits=at))
    over = ModelLimits(**{limit: value - 1})
    for attempt in (
        lambda: load(data, over),
        lambda: onward.InferenceSession(data, onward.SessionOptions(limits=over)),
    ):
        with pytest.raises(LimitExceeded, match=f"more than the limit of {value - 1:,}") as caught:
            attempt()
        assert f"raise ModelLimits.{limit}" in str(caught.value)


def test_limits_of_nesting_and_text(tmp_path: Path) -> None:
    inner = helper.make_graph([], "inner", [], [])
    branches = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    with pytest.raises(LimitExceeded, match=r"ModelLimits\.nesting"):
        scan_model(model(branches), ModelLimits(nesting=0))
    path = tmp_path / "m.textproto"
    onnx.save(onnx.load_model_from_string(serialized(mlp())), path)
    with pytest.raises(LimitExceeded, match=r"ModelLimits\.text_bytes"):
        load(path, ModelLimits(text_bytes=10))


def test_limit_of_folding_work() -> None:
    names = ["w", *(f"v{i}" for i in range(20)), "m"]
    chain = [helper.make_node("Neg", [a], [b]) for a, b in pairwise(names)]
    weights = [("w", np.ones(100, np.float32))]
    data = model(
        *chain, helper.make_node("Add", ["x", "m"], ["y"]), constants=weights, shape=(100,)
    )
    scan_model(data, ModelLimits(folding_work=2100))
    with pytest.raises(LimitExceeded, match="2,100 elements made from constants, more than"):
        scan_model(data, ModelLimits(folding_work=2099))


def test_unknown_domains_are_refused_unless_allowed() -> None:
    data = needs("Thing", domain="my.own")
    with pytest.raises(LimitExceeded, match=r"my\.own::Thing .* of the unknown domain 'my\.own'"):
        load(data)
    assert load(data, ModelLimits(allow_domains=frozenset({"my.own"}))).graph[0].domain == "my.own"
    assert load(data, any_domain=True).graph[0].op_type == "Thing"
    with pytest.raises(LimitExceeded, match="unknown domain"):
        load(onward.load(data, any_domain=True))  # a graph in memory, too
    proto = onnx.load_model_from_string(data)
    body = [helper.make_node("Neg", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 20)]
    proto.functions.append(helper.make_function("my.own", "Thing", ["a"], ["b"], body, imports))
    (y,) = onward.InferenceSession(proto).run(None, {"x": np.ones(2, np.float32)})
    assert y.tolist() == [-1, -1]


def test_ep_context_must_be_allowed() -> None:
    data = needs("EPContext", domain="com.microsoft")
    with pytest.raises(LimitExceeded, match=r"compiled program.*\n.*allow_ep_context"):
        load(data)
    load(data, ModelLimits(allow_ep_context=True))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": -1}, "ModelLimits.nodes must be a whole number, at least 0, not -1"),
        ({"nodes": 2.5}, "nodes must be a whole number"),
        ({"nesting": 99}, "ModelLimits.nesting must be a whole number from 0 to 32, not 99"),
        ({"allow_domains": "mine"}, "allow_domains must be a set of names"),
    ],
)
def test_invalid_limits_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ModelLimits(**given)


@pytest.mark.parametrize("version", [-1, 10**9])
def test_opsets_that_do_not_exist_are_refused(version: int) -> None:
    with pytest.raises(InvalidModel, match=f"no opset {version} of ai.onnx exists"):
        load(model(helper.make_node("Neg", ["x"], ["y"]), opset=version))


@pytest.mark.integration
def test_the_folding_limit_leaves_weights_alone() -> None:
    small = scan_model(filled(10))
    assert folding_limit.max_folded_bytes(small) == 64 << 20
    weights = [("w", np.ones((6000, 5000), np.float32))]
    heavy = scan_model(model(helper.make_node("Add", ["x", "w"], ["y"]), constants=weights))
    assert folding_limit.max_folded_bytes(heavy) == 4 * heavy.largest_weight
    assert folding_limit.disabled_optimizers(small) == []


@pytest.mark.parametrize("part", [{}, {"start": 0}, {"start": -2, "end": 9}])
def test_the_size_of_a_product_of_two_constants_is_that_of_one(part: dict[str, int]) -> None:
    """Shape with attributes is known, too: else sizes multiply, 100,000 by 100,000 here."""
    scan_model(
        model(
            helper.make_node("Shape", ["a"], ["shape"], **part),
            helper.make_node("Reshape", ["b", "shape"], ["same"]),
            helper.make_node("Mul", ["a", "same"], ["product"]),
            helper.make_node("ReduceMax", ["product"], ["m"], keepdims=0),
            helper.make_node("Add", ["x", "m"], ["y"]),
            constants=[("a", np.ones((1000, 100), np.float32)), ("b", np.ones(100_000))],
        ),
        ModelLimits(),
    )


def test_a_reshape_with_zeros_keeps_sizes() -> None:
    scan_model(
        model(
            helper.make_node("Reshape", ["a", "shape"], ["same"]),
            helper.make_node("Mul", ["a", "same"], ["product"]),
            helper.make_node("ReduceMax", ["product"], ["m"], keepdims=0),
            helper.make_node("Add", ["x", "m"], ["y"]),
            constants=[("a", np.ones((1000, 100), np.float32)), ("shape", np.array([0, 100]))],
        ),
        ModelLimits(),
    )


def test_unbounded_constants_are_not_folded() -> None:
    product = helper.make_node("Einsum", ["a", "b"], ["m"], equation="ij,jk->")
    big = np.ones((300, 300), np.float32)
    data = model(
        product, helper.make_node("Add", ["x", "m"], ["y"]), constants=[("a", big), ("b", big)]
    )
    look = scan_model(data)
    assert folding_limit.disabled_optimizers(look) == ["ConstantFolding"]
    (y,) = onward.InferenceSession(data).run(None, {"x": np.zeros(2, np.float32)})
    assert y.tolist() == [300**3, 300**3]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Sum", ["x", ""], ["y"]), "Sum .* its required input 1 is missing"),
        (
            helper.make_node("LayerNormalization", ["x", "x"], ["y"], axis=2**63 - 1),
            "axis is 9223372036854775807, but no tensor has so many axes",
        ),
        (
            helper.make_node("Split", ["x"], ["y", "z"], num_outputs=1),
            "gives 2 outputs, but num_outputs is 1",
        ),
        (helper.make_node("Neg", [], ["y"]), "Neg .* has 0 inputs, but needs 1"),
        (
            helper.make_node("Scan", ["x"], ["y"], num_scan_inputs=2**62),
            "num_scan_inputs is 4611686018427387904, but it has 1 inputs",
        ),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[-(2**40)]), "perm is -1099511627776"),
    ],
)
def test_nodes_that_crash_engines_are_refused(node: onnx.NodeProto, message: str) -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])
    model = helper.make_model(helper.make_graph([node], "g", [value], [out]))
    with pytest.raises(InvalidModel, match=message):
        load(model.SerializeToString())


@pytest.mark.parametrize("in_function", [True, False])
def test_a_reference_to_a_functions_attribute_is_refused_outside_of_functions(
    in_function: bool,
) -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"], "n")
    node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    call = helper.make_node("Leaky", ["x"], ["y"], "c", domain="own", slope=0.5)
    proto = onnx.load_model_from_string(model(call if in_function else node))
    if in_function:
        imports = [helper.make_opsetid("", 20)]
        own = helper.make_function("own", "Leaky", ["x"], ["y"], [node], imports, ["slope"])
        proto.functions.append(own)
        proto.opset_import.append(helper.make_opsetid("own", 1))
        (y,) = onward.InferenceSession(proto).run(None, {"x": np.array([-1, 1], np.float32)})
        assert y.tolist() == [-0.5, 1]
        return
    message = r"\(node 'n'\): attribute 'alpha' refers to the attribute 'slope' of a function, but"
    with pytest.raises(InvalidModel, match=message):
        onward.InferenceSession(proto)
