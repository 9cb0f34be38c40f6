"""Gradients of loops as converters write them: passed through, read from outside, growing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.errors import MissingGradient
from onward.losses import MSE
from onward.optimizers import SGD
from onward.testing import check_gradient

INF = np.array(2**63 - 1)
X = np.array([0.5, -0.3], np.float32)
W = np.array([1.5, 0.7], np.float32)
ROWS = np.array([[0.2, 0.9], [0.4, -0.6], [-0.8, 0.3]], np.float32)
LIMITS = {"one": np.array(1, np.int32), "limit": np.array(3, np.int32)}


def parsed(text: str, **weights: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return model


PASSED_THROUGH = """g (float[2] x, int64 n) => (float[2] y) {
    yes = Constant<value = bool {1}>()
    k0 = Constant<value = int32 {3}>()
    k, u, y = Loop(n, yes, k0, x, x) <body = b
        (int64 i, bool go, int32 k_in, float[2] v, float[2] a)
        => (bool go, int32 k_in, float[2] v, float[2] c) { s = Sin(a) c = Mul(s, v) }>
}"""
SWAPPED = """g (float[2] x, int64 n) => (float[2] y) {
    x2 = Sin(x)
    a, b = Loop(n, , x, x2) <body = b (int64 i, bool go, float[2] p, float[2] q)
        => (bool go, float[2] q, float[2] p) { s = Sin(q) }>
    t = Tanh(a)
    y = Mul(t, b)
}"""
COUNTED = """g (float[2] x, int64 n, float[2] v) => (float[2] y) {
    yes = Constant<value = bool {1}>()
    k0 = Constant<value = int32 {0}>()
    v2 = Tanh(v)
    k, y = Loop(n, yes, k0, x) <body = b (int64 i, bool go, int32 k_in, float[2] a)
        => (bool on, int32 k_out, float[2] c) {
            k_out = Add(k_in, one) on = Less(k_out, limit)
            c0 = Sin(a) c1 = Mul(c0, w) c = Mul(c1, v2)
        }>
}"""
STACKED = """g (float[2] x, int64 n) => (float[k, 2] y) {
    last, y = Loop(n, , x) <body = b (int64 i, bool go, float[2] a)
        => (bool go, float[2] c, float[2] a) { c = Sin(a) }>
}"""
UNTIL = """g (float[2] x) => (float[2] y) {
    yes = Constant<value = bool {1}>()
    y = Loop( , yes, x) <body = b (int64 i, bool go, float[2] a) => (bool on, float[2] c) {
        c = Sin(a) t = Constant<value = int64 {3}>() on = Less(i, t) }>
}"""
NESTED = """g (float[2] x, float[2] v, int64 n) => (float[2] y) {
    yes = Constant<value = bool {1}>()
    first = Constant<value = int64 {1}>()
    k, y = Loop(n, yes, first, x) <body = b (int64 i, bool go, int64 k_in, float[2] a)
        => (bool go, int64 k_out, float[2] c) {
            k_out = Add(k_in, first)
            v2, c = Loop(k_in, go, v, a) <body = b2 (int64 i2, bool go2, float[2] v_in, float[2] a2)
                => (bool go2, float[2] v_in, float[2] c2) {
                    s = Sin(a2) s2 = Mul(s, v) s3 = Add(s2, a) c2 = Mul(s3, v_in) }>
        }>
}"""
CHOSEN = """g (float[2] x, float[2] v, int64 n, bool c) => (float[2] y) {
    y = If(c) <then_branch = t () => (float[2] r) {
            u, r = Loop(n, c, v, x) <body = b (int64 i, bool go, float[2] v_in, float[2] a)
                => (bool go, float[2] v_in, float[2] o) {
                    s = Sin(a) s1 = Mul(s, w) o = Mul(s1, v_in) }>
        }, else_branch = e () => (float[2] r) { r = Identity(x) }>
}"""
CHOICE_INSIDE = """g (float[2] x, float[2] v, int64 n) => (float[2] y) {
    u, y = Loop(n, , v, x) <body = b (int64 i, bool go, float[2] v_in, float[2] a)
        => (bool go, float[2] v_in, float[2] o) {
            s = ReduceSum<keepdims = 0>(a) zero = Constant<value = float {0.}>() c = Less(s, zero)
            o = If(c) <then_branch = t () => (float[2] p) { p = Identity(a) },
                else_branch = e () => (float[2] r) { q = Sin(a) q2 = Mul(q, w) r = Sub(q2, v_in) }>
        }>
}"""
GROWING = """g (float[1, 2] x, int64 n) => (float[k, 2] y) {
    y = Loop(n, , x) <body = b (int64 i, bool go, float[m, 2] a) => (bool go, float[m2, 2] c) {
        s = Sin(a) c = Concat<axis = 0>(a, s) }>
}"""
COLLECTED = """g (float[3, 2] x, float[2] v, int64 n) => (float[k, 2] y) {
    yes = Constant<value = bool {1}>()
    k0 = Constant<value = int32 {0}>()
    e = SequenceEmpty()
    k, s = Loop(n, yes, k0, e) <body = b (int64 i, bool go, int32 k_in, seq(float) s_in)
        => (bool on, int32 k_out, seq(float) s_out) {
            k_out = Add(k_in, one) on = Less(k_out, limit)
            r = Gather(x, i) r2 = Sin(r) r3 = Mul(r2, v) s_out = SequenceInsert(s_in, r3) }>
    y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
}"""
READ_SEQUENCE = """g (float[3, 2] x, float[2] v, int64 n) => (float[2] y) {
    e = SplitToSequence<axis = 0, keepdims = 0>(x)
    s, y = Loop(n, , e, v) <body = b (int64 i, bool go, seq(float) s_in, float[2] a)
        => (bool go, seq(float) s_in, float[2] c) {
            r = SequenceAt(s_in, i) r1 = SequenceAt(e, i) r2 = Sin(a)
            r3 = Mul(r1, r2) c = Mul(r3, r) }>
}"""
SCANNED = """g (float[2] x, float[3, 2] rows, float[2] v) => (float[3, 2] y) {
    last, v2, y = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] v_in, float[2] row)
        => (float[2] s2, float[2] v_in, float[2] s) {
            t = Sin(s) t2 = Mul(t, v) t3 = Mul(t2, w) t4 = Add(t3, v_in)
            s2 = Add(t4, row) }>(x, v, rows)
}"""
SHIFTED = """g (float[2] x, float[3, 2] rows) => (float[3, 2] y) {
    last, y = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] row)
        => (float[2] row, float[2] s) { }>(x, rows)
}"""

N = {"n": np.array(3)}
XV = {"x": X, "v": W}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "values passed through": (PASSED_THROUGH, {"x": X, **N}),
    "no trips": (PASSED_THROUGH, {"x": X, "n": np.array(0)}),
    "values that change places": (SWAPPED, {"x": X, **N}),
    "int32 counter, weights outside": (COUNTED, {**XV, "n": INF}),
    "what is carried, stacked": (STACKED, {"x": X, **N}),
    "stacked, no trips": (STACKED, {"x": X, "n": np.array(0)}),
    "without a trip count": (UNTIL, {"x": X}),
    "loop in a loop": (NESTED, {**XV, "n": np.array(2)}),
    "loop in a branch": (CHOSEN, {**XV, **N, "c": np.array(True)}),
    "loop in the other branch": (CHOSEN, {**XV, **N, "c": np.array(False)}),
    "choice in a loop": (CHOICE_INSIDE, {**XV, "n": np.array(4)}),
    "a tensor that grows": (GROWING, {"x": ROWS[:1], "n": np.array(2)}),
    "a sequence that grows": (COLLECTED, {"x": ROWS, "v": W, **N}),
    "sequences that are read": (READ_SEQUENCE, {"x": ROWS, "v": W, **N}),
    "Scan, passed through": (SCANNED, {**XV, "rows": ROWS}),
    "Scan, inputs returned": (SHIFTED, {"x": X, "rows": ROWS}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_loops_are_central_differences(name: str) -> None:
    text, feeds = CASES[name]
    model = parsed(text, **LIMITS, w=W)
    wrt = [n for n, feed in feeds.items() if feed.dtype == np.float32]
    found = check_gradient(model, feeds, wrt=wrt)
    extended = ir.to_proto(onward.gradient(model, {"y": "dy"}, wrt))
    onnx.checker.check_model(extended)
    stock = onnxruntime.InferenceSession(extended.SerializeToString())  # it opens there, and runs
    (y,) = onward.InferenceSession(model).run(["y"], feeds)
    results = stock.run([f"{n}_grad" for n in wrt], {**feeds, "dy": np.ones_like(y)})
    for result, n in zip(results, wrt):
        assert result.shape == found[n].shape


def test_the_callers_model_stays_as_it_was() -> None:
    model = parsed(CHOSEN, w=W)
    branch = next(iter(model.graph.node)).attribute[0].g
    inside = branch.node[0].attribute[0].g
    inside.node[1].input[1] = "w"
    inside.initializer.append(onnx.numpy_helper.from_array(W, "w"))  # hides the one outside
    before = model.SerializeToString()
    for _ in range(2):
        onward.gradient(model, {"y": "dy"}, ["x"])
    assert model.SerializeToString() == before


@pytest.mark.parametrize("computed", [False, True])
def test_weights_read_by_a_loop_are_trained(computed: bool) -> None:
    """From outside the body, as they are or through a Tanh; passed through every trip too."""
    scale = "v = Tanh(w)" if computed else "v = Identity(w)"
    model = parsed(
        f"""g (float[2] x) => (float[2] y) {{
            n = Constant<value = int64 {{2}}>()
            {scale}
            w2, y = Loop(n, , w, x) <body = b (int64 i, bool go, float[2] w_in, float[2] a)
                => (bool go, float[2] w_in, float[2] c) {{
                    s = Mul(a, v) s2 = Sin(s) c = Add(s2, w_in) }}>
        }}""",
        w=W,
    )
    session = onward.TrainingSession(model, MSE(), SGD(lr=0.1))
    assert list(session.parameters) == ["w"]
    session.step({"x": X, "target": np.zeros(2, np.float32)})

    def loss(w: Any) -> float:
        y, v = X.astype(np.float64), np.tanh(w) if computed else w
        for _ in range(2):
            y = np.sin(y * v) + w
        return float(np.mean(y**2))

    steps = 1e-6 * np.eye(2)
    slope = [(loss(W + step) - loss(W - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(session.parameters["w"], W - 0.1 * np.array(slope), rtol=1e-4)


def test_subgraphs_inside_a_subgraph_are_refused() -> None:
    branch = "() => (float[1, 1, 2, 2] {0}) {{ {0} = Neg(s) }}"
    text = f"""g (float[1, 1, 2, 4] q, bool c) => (float[1, 1, 2, 4] y) {{
        y = ai.onnx.preview.FlexAttention <score_mod = m (float[1, 1, 2, 2] s)
            => (float[1, 1, 2, 2] r) {{ r = If(c) <then_branch = t {branch.format("a")},
                                                  else_branch = e {branch.format("b")}> }}>
            (q, q, q)
    }}"""
    opsets = '["": 21, "ai.onnx.preview": 1]'
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {opsets}> {text}")
    with pytest.raises(MissingGradient, match=r"a node with a subgraph of its own \(If\)"):
        onward.gradient(model, {"y": "dy"}, "q")
