"""The reverse walk: values with many readers, at any shape, also through nested bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import onward
from onward.testing import check_gradient

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]])
HALF = np.array(0.5)

MANY_READERS: dict[str, Any] = {
    "a value": lambda op, x, w: op.Sum(op.Mul(x, x), op.Sub(op.Mul(x, w), x), x, op.Mul(x, x)),
    "a weight": lambda op, x, w: op.Div(op.Add(w, op.Mul(x, w)), op.Add(op.Mul(w, w), 1.0)),
    "twice by one": lambda op, x, w: op.Mul(op.Add(x, w), op.Add(x, w)),
    "that cancel": lambda op, x, w: op.Sub(op.Sub(x, x), op.Sub(w, w)),
}
SHAPES: dict[str, Any] = {  # the sizes that the model says of x and of w, and what they are
    "equal": ((2, 3), (2, 3), X, X + 0.1),
    "w broadcast": ((2, 3), (3,), X, X[0]),
    "both broadcast": ((2, 1), (1, 3), X[:, :1], X[:1]),
    "unknown sizes": (("n", 3), ("m", 3), X, X + 0.1),
    "unknown sizes, broadcast": (("n", "k"), ("m", "l"), X[:1], X[:, :1]),
    "rank 0": ((), (), HALF, HALF + 1),
    "rank 0 and 1": ((), (1,), HALF, np.array([1.5])),
    "nothing": ((0, 3), (0, 3), X[:0], X[:0]),
    "broadcast to nothing": ((0, 3), (1, 3), X[:0], X[:1]),
    "nothing, unknown sizes": (("n", 3), ("m", 3), X[:0], X[:1]),
}


@pytest.mark.sampled("write")
@pytest.mark.sampled("shapes")
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("write", MANY_READERS.values(), ids=MANY_READERS.keys())
def test_gradients_of_several_consumers_are_summed(write: Any, shapes: Any) -> None:
    op = onward.OpBuilder()
    x_sizes, w_sizes, x, w = shapes
    y = write(op, op.input("x", "float64", x_sizes), op.input("w", "float64", w_sizes))
    check_gradient(op.model(y=y), {"x": x, "w": w})


NESTED = """
    <ir_version: 10, opset_import: ["": 21]>
    g (double[2,3] x, bool c, int64 n, double[3] w) => (double[2,3] y) {
        on = Constant <value = bool {1}> ()
        scaled = Mul (x, w)
        looped = Loop (n, on, scaled) <
            body = b (int64 i, bool go, double[2,3] s) => (bool on2, double[2,3] s2) {
                on2 = Identity (go)
                h = If (c) <
                    then_branch = t () => (double[2,3] a) { a = Mul (s, w) },
                    else_branch = e () => (double[2,3] b) { q = Add (s, w)  b = Sin (q) }
                >
                s2 = Add (h, scaled)
            }
        >
        y = Mul (looped, w)
    }"""


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("trips", [0, 1, 3])
def test_values_captured_by_nested_subgraphs_have_gradients(taken: bool, trips: int) -> None:
    """w is read by the graph, by a loop's body, and by both branches inside it."""
    feeds = {"x": X, "w": np.array([0.5, -0.3, 0.8]), "c": np.array(taken), "n": np.array(trips)}
    check_gradient(onnx.parser.parse_model(NESTED), feeds)


BRANCHES = """
    <ir_version: 10, opset_import: ["": 21]>
    g (double[2,3] x, bool c) => (double[2,3] y) {
        a = If (c) <
            then_branch = t () => (double[2,3] r) { q = Sin (x)  r = Mul (q, q) },
            else_branch = e () => (double[2,3] s) { q = Cos (x)  s = Mul (q, x) }
        >
        d = If (c) <
            then_branch = u () => (double[2,3] r) { q = Sin (a)  r = Mul (q, x) },
            else_branch = f () => (double[2,3] s) { s = Identity (x) }
        >
        y = Mul (a, d)
    }"""


@pytest.mark.parametrize("taken", [True, False])
def test_subgraphs_may_have_the_same_names(taken: bool) -> None:
    check_gradient(onnx.parser.parse_model(BRANCHES), {"x": X, "c": np.array(taken)})


GROWING = """
    <ir_version: 10, opset_import: ["": 21]>
    g (double[2,3] x, double[3] w, int64 n) => (double[p,3] y) {
        on = Constant <value = bool {1}> ()
        first = SequenceConstruct (x)
        s, h = Loop (n, on, first, x) <
            body = b (int64 i, bool go, seq(double[2,3]) rows, double[2,3] c)
                => (bool on2, seq(double[2,3]) more, double[2,3] sum) {
                on2 = Identity (go)
                end = Constant <value = int64 {-1}> ()
                last = SequenceAt (rows, end)
                q = Mul (last, w)
                r = Sin (q)
                sum = Add (r, c)
                more = SequenceInsert (rows, sum)
            }
        >
        z = ConcatFromSequence <axis = 0> (s)
        y = Mul (z, z)
    }"""


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "CPUExecutionProvider"])
def test_a_loop_may_carry_a_sequence(provider: str, trips: int) -> None:
    feeds = {"x": X, "w": np.array([0.5, 2.0, -1.0]), "n": np.array(trips)}
    model = onnx.parser.parse_model(GROWING)
    check_gradient(model, feeds, wrt=["x", "w"], providers=[provider, "ReferenceExecutionProvider"])
