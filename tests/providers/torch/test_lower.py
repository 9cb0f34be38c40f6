"""The lowering: host numbers, lifetimes of values, subgraphs, compilation."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from onward.errors import InvalidModel, UnsupportedModel
from onward.graph.operator_table import OpTable
from onward.passes.pipelines import PREPARE
from onward.providers.torch.lower import Lowered, lower
from onward.providers.torch.table import HOST, KERNELS

# torch warns once per process about read-only arrays; weights are never written
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

Array = np.ndarray[Any, Any]
HEADER = '<ir_version: 10, opset_import: ["" : 25]>\n'


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def lowered(model: onnx.ModelProto, kernels: OpTable = KERNELS) -> Lowered:
    return lower(PREPARE(ir.from_proto(model)).graph, kernels, HOST)


def run(module: Callable[..., Any], *feeds: Array | bool | int) -> list[Array]:
    with torch.inference_mode():
        return [y.numpy() for y in module(*map(torch.as_tensor, feeds))]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_like_reference(model: onnx.ModelProto, *feeds: Array) -> None:
    names = [value.name for value in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, feeds, strict=True)))
    for got, wanted in zip(run(lowered(model), *feeds), expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


# -- numbers stay numbers ----------------------------------------------------------------------

RESHAPED = parse("""
    g (float[b, t, 6] x) => (float[b, t, 2, 3] y)
    <int64[1] first = {0}, int64[2] inner = {2, 3}, int64 one = {1}, int64[1] axis = {0}>
    {
        s = Shape(x)
        b = Gather(s, first)
        t0 = Gather(s, one)
        t = Unsqueeze(t0, axis)
        shape = Concat <axis = 0> (b, t, inner)
        y = Reshape(x, shape)
    }
""")


def test_a_chain_from_shape_to_reshape_has_no_tensor_in_it() -> None:
    module = lowered(RESHAPED)
    assert "as_tensor" not in module.source
    assert not dict(module.named_buffers())
    assert re.findall(r"= (\w+)\(", module.source) == [
        *["host_shape", "host_gather", "host_gather", "host_unsqueeze", "host_concat"],
        "reshape",
    ]
    assert_like_reference(RESHAPED, floats(2, 5, 6))


def test_a_shape_that_is_an_output_becomes_a_tensor_once() -> None:
    model = parse("""
        g (float[a, b] x) => (int64[2] s, float[2] z)
        { s = Shape(x)  f = Cast <to = 1> (s)  g = Cast <to = 1> (s)  z = Add(f, g) }
    """)
    assert lowered(model).source.count("as_tensor(") == 1
    assert_like_reference(model, floats(2, 3))


def test_a_range_as_long_as_the_data_is_a_tensor() -> None:
    model = parse("""
        g (float[n] x) => (int64[n] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}>
        { s = Shape(x)  n = Squeeze(s, axis)  y = Range(zero, n, one) }
    """)
    source = lowered(model).source
    assert "host_range" not in source and "range_(0, as_scalar(" in source
    assert_like_reference(model, floats(100))


def test_a_list_that_is_known_to_be_short_stays_on_the_host() -> None:
    model = parse("""
        g (float[a, b] x, float[c, d] like) => (float[c, d] y)
        <int64[1] minus = {-1}, int64[1] one = {1}, int64[1] two = {2}>
        {
            s = Shape(like)
            end = Slice(s, one, two)
            target = Concat <axis = 0> (minus, end)
            rank = Shape(target)
            ones = ConstantOfShape <value = int64[1] {1}> (rank)
            unknown = Equal(target, minus)
            shape = Where(unknown, ones, target)
            y = Expand(x, shape)
        }
    """)
    module = lowered(model)
    assert "host_constant_of_shape" in module.source and "as_tensor" not in module.source
    assert run(module, floats(4, 1), floats(2, 3))[0].shape == (4, 3)


def test_a_small_constant_is_written_into_the_source_not_kept_as_a_weight() -> None:
    model = parse("""
        g (float[2, 3] x) => (float[3, 2] y) <int64[2] shape = {3, 2}> { y = Reshape(x, shape) }
    """)
    module = lowered(model)
    assert "reshape(v0, [3, 2]" in module.source
    assert not dict(module.named_buffers())


def test_an_initializer_that_is_also_an_input_is_not_a_constant() -> None:
    model = parse("""
        g (float[2, 3] x, int64[2] shape) => (float[a, b] y) <int64[2] shape = {3, 2}>
        { y = Reshape(x, shape) }
    """)
    module = lowered(model)
    assert run(module, floats(2, 3), np.array([6, 1]))[0].shape == (6, 1)


# -- values ------------------------------------------------------------------------------------


def test_outputs_may_be_inputs_initializers_and_each_other() -> None:
    model = parse("""
        g (float[2] x, float[2] unused) => (float[2] x, float[2] w, float[2] y, float[2] y)
        <float[2] w = {1.0, 2.0}>
        { y = Add(x, w) }
    """)
    x, w, y, again = run(lowered(model), np.float32([3, 4]), np.float32([0, 0]))
    np.testing.assert_array_equal([x, w, y, again], [[3, 4], [1, 2], [4, 6], [4, 6]])


def test_a_value_may_be_read_twice_by_one_node() -> None:
    model = parse("g (float[2] x) => (float[2] y) { z = Neg(x)  y = Mul(z, z) }")
    assert lowered(model).source.count("v1 = None") == 1
    assert_like_reference(model, floats(2))


def test_unused_outputs_are_dropped_or_unnamed() -> None:
    model = parse(
        """
        g (float[n] x) => (int64[m] counts)
        { values, "", inverse, counts = Unique(x) }
    """.replace('""', "")
    )
    module = lowered(model)
    assert ", _, " in module.source
    np.testing.assert_array_equal(run(module, np.float32([2, 1, 2]))[0], [1, 2])


def test_trailing_outputs_may_be_left_out() -> None:
    model = parse("g (float[n] x) => (float[m] y) { y = Unique(x) }")
    np.testing.assert_array_equal(run(lowered(model), np.float32([2, 1, 2]))[0], [1, 2])


def test_a_value_is_dropped_after_its_last_use() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    kernel = OpTable()

    @kernel("Neg", "Exp")
    def make(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        made.append(weakref.ref(y))
        return y

    @kernel("Abs")
    def look(x: torch.Tensor) -> torch.Tensor:
        alive[:] = [reference() is not None for reference in made]
        return x + 1

    model = parse("g (float[2] x) => (float[2] y) { a = Neg(x) b = Exp(a) c = Exp(b) y = Abs(c) }")
    run(lowered(model, kernel), floats(2))
    assert alive == [False, False, True]


def test_an_optional_input_may_be_left_out_before_another() -> None:
    model = parse("""
        g (float[n] x) => (float[n] y) <float high = {0.5}> { y = Clip(x, , high) }
    """)
    assert "None" in lowered(model).source
    assert_like_reference(model, floats(8))


def test_an_operator_without_a_kernel_is_named() -> None:
    model = parse("g (float[2] x) => (float[2] y) { [here] y = Abs(x) }")
    with pytest.raises(
        UnsupportedModel, match=r"no torch kernel for ai.onnx::Abs .*\(node 'here'\)"
    ):
        lowered(model, OpTable())


# -- subgraphs ---------------------------------------------------------------------------------

BRANCHES = parse("""
    g (float[n] x, bool p, bool q) => (float[n] y) <float one = {1.0}>
    {
        outer = Add(x, one)
        y = If (p) <
            then_branch = yes () => (float[n] a) {
                between = Mul(outer, x)
                a = If (q) <
                    then_branch = both () => (float[n] b) <float ten = {10.0}> {
                        c = Mul(between, ten)
                        b = Add(c, outer)
                    },
                    else_branch = first () => (float[n] d) { d = Sub(between, outer) }
                >
            },
            else_branch = no () => (float[n] e) { e = Identity(outer) }
        >
    }
""")


@pytest.mark.parametrize("p", [False, True])
@pytest.mark.parametrize("q", [False, True])
def test_nested_branches_capture_outer_values_and_have_their_own_initializers(
    p: bool, q: bool
) -> None:
    assert_like_reference(BRANCHES, floats(3), np.array(p), np.array(q))


def test_a_loops_body_may_return_its_own_inputs() -> None:
    model = parse("""
        g (float[n] x, int64 trips) => (float[n] y, float[rows, n] seen) <bool always = {1}>
        {
            y, seen = Loop (trips, always, x) <
                body = same (int64 i, bool go, float[n] h) => (bool go, float[n] h, float[n] h) {}
            >
        }
    """)
    x = floats(3)
    y, seen = run(lowered(model), x, 2)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(seen, [x, x])


def test_value_without_a_producer_is_named() -> None:
    model = parse("""
        g (float[n] x, bool p) => (float[n] y) {
            y = If (p) <then_branch = yes () => (float[n] x) {},
                        else_branch = no () => (float[n] z) { z = Neg(x) }>
        }
    """)
    with pytest.raises(InvalidModel, match="no node, input or initializer gives value 'x'"):
        lowered(model)


def test_a_shape_captured_by_a_branch_stays_a_number() -> None:
    model = parse("""
        g (float[a, b] x, bool p) => (float[c, d] y) <int64[1] one = {1}>
        {
            s = Shape(x)
            y = If (p) <
                then_branch = yes () => (float[c, d] z) {
                    n = Size(x)  m = Reshape(n, one)  t = Concat <axis = 0> (m, one)
                    z = Reshape(x, t)
                },
                else_branch = no () => (float[c, d] w) { w = Reshape(x, s) }
            >
        }
    """)
    module = lowered(model)
    assert "as_tensor" not in module.source
    assert run(module, floats(2, 3), True)[0].shape == (6, 1)
    assert run(module, floats(2, 3), False)[0].shape == (2, 3)


LOOPS = parse("""
    g (float[n] x) => (float[n] y, float[rows, n] steps)
    <int64 three = {3}, int64 two = {2}, bool always = {1}>
    {
        double = Add(x, x)
        y, steps = Loop (three, always, x) <
            body = outer (int64 i, bool go, float[n] state)
                => (bool more, float[n] new, float[n] step)
            {
                more = Identity(go)
                new = Loop (two, , state) <
                    body = inner (int64 j, bool go_on, float[n] h) => (bool further, float[n] k) {
                        further = Identity(go_on)
                        both = Add(i, j)
                        weight = Cast <to = 1> (both)
                        part = Mul(double, weight)
                        k = Add(h, part)
                    }
                >
                step = Identity(new)
            }
        >
    }
""")


def test_nested_loops_capture_the_outer_loops_counter_and_values() -> None:
    x = floats(3)
    y, steps = run(lowered(LOOPS), x)
    rows, state = [], x.copy()
    for i in range(3):
        for j in range(2):
            state = state + 2 * x * (i + j)
        rows.append(state)
    np.testing.assert_allclose(steps, rows, rtol=1e-5)
    np.testing.assert_allclose(y, rows[-1], rtol=1e-5)


def test_a_loops_counter_and_condition_are_numbers() -> None:
    model = parse("""
        g (float[n, 2] x) => (float[rows, 1, 2] y)
        <int64 three = {3}, bool always = {1}>
        {
            y = Loop (three, always) <
                body = each (int64 i, bool go) => (bool more, float[1, 2] row)
                <int64[1] axis = {0}, int64 one = {1}>
                {
                    more = Identity(go)
                    start = Unsqueeze(i, axis)
                    next = Add(i, one)
                    stop = Unsqueeze(next, axis)
                    row = Slice(x, start, stop, axis)
                }
            >
        }
    """)
    module = lowered(model)
    assert "as_tensor" not in module.source
    x = floats(5, 2)
    np.testing.assert_array_equal(run(module, x)[0], x[:3, None])


# -- compiled ----------------------------------------------------------------------------------


def compiled(module: Lowered) -> tuple[Callable[..., Any], list[Any]]:
    """The module compiled for dynamic shapes, and the graphs that were made of it so far."""
    graphs: list[Any] = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(module, dynamic=True, fullgraph=True, backend=backend), graphs


def transformer_block() -> onnx.ModelProto:
    """Pre-norm causal attention of two heads, its shapes computed as exporters do."""
    model = parse("""
        block (float[batch, time, 8] x) => (float[batch, time, 8] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] axis0 = {0}, int64[1] axis1 = {1},
         int64[1] heads = {2}, int64[1] width = {4}, float low = {-10000.0}, float root = {2.0}>
        {
            s = Shape(x)
            b0 = Gather(s, zero)
            t0 = Gather(s, one)
            b = Unsqueeze(b0, axis0)
            t = Unsqueeze(t0, axis0)
            n = LayerNormalization(x, scale, bias)
            qkv = MatMul(n, wqkv)
            q0, k0, v0 = Split <axis = -1, num_outputs = 3> (qkv)
            split = Concat <axis = 0> (b, t, heads, width)
            q1 = Reshape(q0, split)
            k1 = Reshape(k0, split)
            v1 = Reshape(v0, split)
            q = Transpose <perm = [0, 2, 1, 3]> (q1)
            k = Transpose <perm = [0, 2, 3, 1]> (k1)
            v = Transpose <perm = [0, 2, 1, 3]> (v1)
            qk = MatMul(q, k)
            scores = Div(qk, root)
            at = Range(zero, t0, one)
            row = Unsqueeze(at, axis0)
            column = Unsqueeze(at, axis1)
            later = Greater(row, column)
            masked = Where(later, low, scores)
            weights = Softmax <axis = -1> (masked)
            c0 = MatMul(weights, v)
            c1 = Transpose <perm = [0, 2, 1, 3]> (c0)
            whole = Mul(heads, width)
            joined = Concat <axis = 0> (b, t, whole)
            c = Reshape(c1, joined)
            o = MatMul(c, wo)
            y = Add(x, o)
        }
    """)
    shapes = {"wqkv": (8, 24), "wo": (8, 8), "scale": (8,), "bias": (8,)}
    for seed, (name, shape) in enumerate(shapes.items()):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(floats(*shape, seed=seed), name)
        )
    return model


@pytest.mark.integration
def test_a_transformer_block_compiles_to_one_graph_for_all_batches_and_lengths() -> None:
    model = transformer_block()
    module, graphs = compiled(lowered(model))
    reference = ReferenceEvaluator(model)
    for batch, time in [(2, 5), (3, 7), (5, 2), (4, 9)]:
        x = floats(batch, time, 8, seed=batch)
        (expected,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(run(module, x)[0], expected, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1


def test_a_loop_of_constant_length_and_a_branch_on_a_shape_compile_to_one_graph() -> None:
    model = parse("""
        g (float[batch, width] x) => (float[batch, width] y, float[steps, batch, width] all)
        <int64 three = {3}, bool always = {1}, int64 one = {1}>
        {
            s = Shape(x)
            size = Gather(s, one)
            wide = Greater(size, one)
            z = If (wide) <then_branch = yes () => (float[batch, width] a) { a = Exp(x) },
                           else_branch = no () => (float[batch, width] b) { b = Neg(x) }>
            y, all = Loop (three, always, z) <
                body = step (int64 i, bool go, float[batch, width] h)
                    => (bool more, float[batch, width] k, float[batch, width] each)
                {
                    more = Identity(go)
                    f = Cast <to = 1> (i)
                    k = Add(h, f)
                    each = Identity(k)
                }
            >
        }
    """)
    module, graphs = compiled(lowered(model))
    for batch, width in [(2, 3), (4, 5)]:
        x = floats(batch, width)
        y, steps = run(module, x)
        np.testing.assert_allclose(y, np.exp(x) + 3, rtol=1e-5)
        np.testing.assert_allclose(steps, [np.exp(x), np.exp(x) + 1, np.exp(x) + 3], rtol=1e-5)
    assert len(graphs) == 1


def test_a_comparison_of_shapes_can_be_an_output_of_a_compiled_graph() -> None:
    model = parse("""
        g (float[a, b] x) => (bool[2] y, float z) <int64[2] limit = {3, 3}, int64 one = {1}>
        {
            s = Shape(x)
            y = Less(s, limit)
            last = Gather(s, one)
            z = Cast <to = 1> (last)
        }
    """)
    module, graphs = compiled(lowered(model))
    flags, number = run(module, floats(2, 5))
    np.testing.assert_array_equal(flags, [True, False])
    assert number == 5.0
    assert len(graphs) == 1
