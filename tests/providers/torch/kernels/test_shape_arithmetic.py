"""Shape arithmetic in plain numbers, against ONNX's reference, eager and with symbols."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from onward.passes.pipelines import PREPARE
from onward.providers.torch.kernels.shape_arithmetic import host
from onward.providers.torch.lower import lower
from onward.providers.torch.table import HOST, KERNELS

# Constants that a case may name: n is a number, l a list; what follows are their digits.
CONSTANTS = """
    int64 n0 = {0}, int64 n1 = {1}, int64 n2 = {2}, int64 n3 = {3}, int64 n5 = {5},
    int64 n_3 = {-3}, int64 n_4 = {-4}, int64[0] none = {},
    int64[1] l0 = {0}, int64[1] l1 = {1}, int64[1] l2 = {2}, int64[1] l3 = {3}, int64[1] l4 = {4},
    int64[1] l_1 = {-1}, int64[1] l_2 = {-2}, int64[1] l_9 = {-9},
    int64[2] l_1_2 = {-1, 2}, int64[2] l_1_1 = {-1, 1}, int64[2] l3_1 = {3, 1},
    int64[4] minus = {-2, 3, -5, 2}, int64[4] zeros = {0, 3, 0, 7},
    int64[1] last = {9223372036854775807}, int64[1] first = {-9223372036854775807},
    bool yes = {1}, float half = {2.5}
"""
# The case's name, its nodes (from s = Shape of a (2, 3, 5, 7) tensor to y), y's type.
CASES = [
    ("shape", "y = Shape <start = 1, end = -1> (x)", "int64[2]"),
    ("shape of a shape", "y = Shape(s)", "int64[1]"),
    ("size", "y = Size(x)", "int64"),
    ("size of a shape", "y = Size(s)", "int64"),
    ("gather a number", "y = Gather(s, n_4)", "int64"),
    ("gather a list", "y = Gather(s, l_1_2)", "int64[2]"),
    ("gather none", "y = Gather(s, none)", "int64[0]"),
    ("slice", "y = Slice(s, l1, l3)", "int64[2]"),
    ("slice to the end", "y = Slice(s, l_2, last, l0)", "int64[2]"),
    ("slice beyond the end", "y = Slice(s, l_9, last)", "int64[4]"),
    ("slice with a step", "y = Slice(s, l0, last, l0, l2)", "int64[2]"),
    ("slice backwards", "y = Slice(s, l_1, first, l0, l_1)", "int64[4]"),
    ("slice backwards in steps", "y = Slice(s, l3, l0, l_1, l_2)", "int64[2]"),
    ("slice to nothing", "y = Slice(s, l3, l1)", "int64[0]"),
    ("concat", "a = Gather(s, l1) y = Concat <axis = -1> (a, minus, s)", "int64[9]"),
    ("split", "y, a, b = Split <axis = 0, num_outputs = 3> (s)", "int64[2]"),
    ("split off the end", "a, y = Split <axis = 0> (s, l3_1)", "int64[1]"),
    (
        "squeeze and unsqueeze",
        "a = Gather(s, l2) b = Squeeze(a, l0) y = Unsqueeze(b, l_1)",
        "int64[1]",
    ),
    ("where it is not 0", "a = Equal(s, zeros) b = Not(a) y = NonZero(b)", "int64[1, 3]"),
    ("a row of places", "a = Equal(s, zeros) b = NonZero(a) y = Squeeze(b, l0)", "int64[1]"),
    ("squeeze every 1", "a = Gather(s, l2) y = Squeeze(a)", "int64"),
    (
        "axes that differ",
        "a = Equal(s, zeros) b = Not(a) c = NonZero(b) y = Squeeze(c, l0)",
        "int64[n]",
    ),
    ("no axis differs", "a = Equal(s, s) b = Not(a) c = NonZero(b) y = Squeeze(c, l0)", "int64[n]"),
    ("squeeze a column", "a = Reshape(s, l_1_1) y = Squeeze(a, l_1)", "int64[4]"),
    ("reshape to a number", "a = Gather(s, l2) y = Reshape(a, none)", "int64"),
    ("reshape to a list", "a = Gather(s, n2) y = Reshape(a, l_1)", "int64[1]"),
    (
        "turn round in two dimensions",
        "a = Reshape(s, l_1_2) b = Slice(a, l_1, first, l0, l_1) c = Transpose <perm = [1, 0]> (b)"
        "y = Reshape(c, l_1)",
        "int64[4]",
    ),
    (
        "a slice of columns",
        "a = Reshape(s, l_1_2) b = Slice(a, l1, last, l_1) y = Reshape(b, l_1)",
        "int64[2]",
    ),
    ("expand a number", "a = Gather(s, n1) y = Expand(a, l4)", "int64[4]"),
    ("expand to the same", "y = Expand(s, l1)", "int64[4]"),
    (
        "constant of shape",
        "r = Shape(s) y = ConstantOfShape <value = int64[1] {7}> (r)",
        "int64[4]",
    ),
    ("range", "y = Range(n3, n_4, n_3)", "int64[3]"),
    ("add", "y = Add(s, minus)", "int64[4]"),
    ("add a number", "a = Gather(s, n1) y = Add(a, s)", "int64[4]"),
    ("add a list of one", "a = Gather(s, l1) y = Add(a, s)", "int64[4]"),
    (
        "add a list of one to none",
        "a = Gather(s, none) b = Gather(s, l1) y = Add(a, b)",
        "int64[0]",
    ),
    ("sub", "y = Sub(n3, s)", "int64[4]"),
    ("mul", "y = Mul(s, minus)", "int64[4]"),
    ("div rounds towards zero", "y = Div(s, minus)", "int64[4]"),
    (
        "div by a size",
        "a = Gather(s, n1) b = Neg(a) c = Div(s, a) d = Div(s, b) y = Sub(c, d)",
        "int64[4]",
    ),
    ("div of a negative number", "a = Neg(s) y = Div(a, n2)", "int64[4]"),
    ("mod has the divisor's sign", "y = Mod(s, minus)", "int64[4]"),
    ("mod has the dividend's sign", "a = Neg(s) y = Mod <fmod = 1> (a, n3)", "int64[4]"),
    ("abs", "a = Mul(s, minus) y = Abs(a)", "int64[4]"),
    ("sum", "y = Sum(s, s, minus)", "int64[4]"),
    ("max", "y = Max(s, n3, minus)", "int64[4]"),
    ("min", "y = Min(s, n3, minus)", "int64[4]"),
    ("clip", "y = Clip(s, n3, n5)", "int64[4]"),
    ("clip above only", "y = Clip(s, , n3)", "int64[4]"),
    ("cumsum", "y = CumSum(s, n0)", "int64[4]"),
    (
        "cumsum backwards without itself",
        "y = CumSum <exclusive = 1, reverse = 1> (s, n0)",
        "int64[4]",
    ),
    ("equal", "y = Equal(s, zeros)", "bool[4]"),
    ("less", "y = Less(s, n3)", "bool[4]"),
    ("less or equal", "y = LessOrEqual(s, n3)", "bool[4]"),
    ("greater", "y = Greater(s, n3)", "bool[4]"),
    ("greater or equal", "y = GreaterOrEqual(s, n3)", "bool[4]"),
    ("not", "a = Less(s, n3) y = Not(a)", "bool[4]"),
    ("and", "a = Less(s, n5) b = Greater(s, n2) y = And(a, b)", "bool[4]"),
    ("or", "a = Less(s, n3) b = Greater(s, n5) y = Or(a, b)", "bool[4]"),
    ("xor", "a = Less(s, n3) y = Xor(a, yes)", "bool[4]"),
    ("where", "a = Equal(zeros, n0) y = Where(a, s, minus)", "int64[4]"),
    ("where of numbers", "a = Gather(s, n0) b = Less(a, n3) y = Where(b, n1, a)", "int64"),
    (
        "cast to bool and back",
        "a = Sub(s, n2) b = Cast <to = 9> (a) y = Cast <to = 7> (b)",
        "int64[4]",
    ),
    ("cast to int32", "y = Cast <to = 6> (s)", "int32[4]"),
    ("cast a float constant", "a = Cast <to = 7> (half) y = Add(s, a)", "int64[4]"),
    ("reduce sum", "y = ReduceSum <keepdims = 0> (s)", "int64"),
    ("reduce prod", "y = ReduceProd <keepdims = 1> (s, l0)", "int64[1]"),
    ("reduce max", "y = ReduceMax <keepdims = 0> (s, l_1)", "int64"),
    ("reduce min", "y = ReduceMin <keepdims = 0> (s)", "int64"),
    ("reduce nothing", "y = ReduceSum <keepdims = 0, noop_with_empty_axes = 1> (s)", "int64[4]"),
    ("reduce an empty list", "a = Gather(s, none) y = ReduceProd <keepdims = 0> (a)", "int64"),
]
MODELS = {
    name: onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 25]> g (float[a, b, c, d] x) => ({kind} y) '
        f"<{CONSTANTS}> {{ s = Shape(x) {nodes} }}"
    )
    for name, nodes, kind in CASES
}
X = np.zeros((2, 3, 5, 7), np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_host_functions_match_the_reference(name: str) -> None:
    module = lower(PREPARE(ir.from_proto(MODELS[name])).graph, KERNELS, HOST)
    calls = re.findall(r" = (\w+)\(", module.source)
    assert all(call.startswith("host_") for call in calls[:-1]), module.source
    assert calls[-1] == "as_tensor"  # the graph's output, and nothing else
    (y,) = (value.numpy() for value in module(torch.from_numpy(X)))
    (expected,) = ReferenceEvaluator(MODELS[name]).run(None, {"x": X})
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)


def test_every_host_operator_has_a_case() -> None:
    tried = {node.op_type for model in MODELS.values() for node in model.graph.node}
    elsewhere = {"Identity", "SequenceLength", "OptionalHasElement"}  # test_lower, test_sequence
    assert {operator for _, operator in host} == tried | elsewhere


@pytest.mark.integration
def test_symbols_give_the_same_numbers_in_one_graph() -> None:
    """Each case that decides nothing by a size, on sizes other than those it was traced on."""
    decided = {"and", "or", "xor", "not", "where of numbers", "cast to bool and back"}
    decided |= {"where it is not 0", "a row of places"}
    decided |= {"axes that differ", "no axis differs"}
    names = [name for name in MODELS if name not in decided]
    modules = [lower(PREPARE(ir.from_proto(MODELS[name])).graph, KERNELS, HOST) for name in names]
    graphs = []

    def backend(graph: torch.fx.GraphModule, example: object) -> object:
        graphs.append(graph)
        return graph.forward

    def every(x: torch.Tensor) -> list[torch.Tensor]:
        return [module.forward(x)[0] for module in modules]

    torch._dynamo.reset()
    compiled = torch.compile(every, dynamic=True, fullgraph=True, backend=backend)
    for shape in [(2, 3, 5, 7), (4, 6, 8, 9)]:
        x = np.zeros(shape, np.float32)
        for name, y in zip(names, compiled(torch.from_numpy(x)), strict=True):
            (expected,) = ReferenceEvaluator(MODELS[name]).run(None, {"x": x})
            np.testing.assert_array_equal(y.numpy(), expected, err_msg=name)
    assert len(graphs) == 1
