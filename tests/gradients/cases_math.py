"""Cases of rules/math.py."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, between, normal, positive, spread

DOUBLE = ir.DataType.DOUBLE

TIED = np.array([[1.0, 2.0, -1.0], [0.5, 0.5, 3.0]])
TIED_TOO = np.array([[1.0, -2.0, -1.0], [0.7, 0.5, 3.0]])

CASES = [
    Case("Identity", lambda op, x: op.Identity(x), {"x": normal(2, 3)}),
    Case(
        "Cast",
        lambda op, x: op.CastLike(op.Mul(op.Cast(x, to=DOUBLE), 2.0), x),
        {"x": normal(2, 3)},
        "to float64 and back",
    ),
    Case(
        "Cast",
        lambda op, x: op.Mul(x, op.Cast(op.Cast(x, to=ir.DataType.INT32), to=DOUBLE)),
        {"x": spread(2, 3, gap=0.7)},
        "through an integer",
        ort=False,  # its type is written into the graph
    ),
    Case(
        "CastLike",
        lambda op, x, like: op.CastLike(x, like),
        {"x": normal(2, 3), "like": normal(1)},
        wrt=("x",),
    ),
    Case("Add", lambda op, a, b: op.Add(a, b), {"a": normal(2, 3), "b": normal(2, 3, seed=1)}),
    Case(
        "Add", lambda op, a, b: op.Add(a, b), {"a": normal(2, 1, 4), "b": normal(3, 1)}, "broadcast"
    ),
    Case("Add", lambda op, x: op.Add(x, x), {"x": normal(2, 3)}, "to itself"),
    Case("Sub", lambda op, a, b: op.Sub(a, b), {"a": normal(2, 3), "b": normal(2, 3, seed=1)}),
    Case("Sub", lambda op, a, b: op.Sub(a, b), {"a": normal(3), "b": normal(2, 3)}, "broadcast"),
    Case("Mul", lambda op, a, b: op.Mul(a, b), {"a": normal(2, 3), "b": normal(2, 3, seed=1)}),
    Case("Mul", lambda op, x: op.Mul(x, x), {"x": normal(2, 3)}, "by itself"),
    Case("Mul", lambda op, a, b: op.Mul(a, b), {"a": normal(), "b": normal(3)}, "scalar"),
    Case("Mul", lambda op, a, b: op.Mul(a, b), {"a": normal(0, 3), "b": normal(3)}, "empty"),
    Case("Div", lambda op, a, b: op.Div(a, b), {"a": normal(2, 3), "b": positive(2, 3)}),
    Case(
        "Div", lambda op, a, b: op.Div(a, b), {"a": normal(2, 3), "b": positive(2, 1)}, "broadcast"
    ),
    Case("Div", lambda op, a, b: op.Div(a, b), {"a": normal(), "b": np.array(-1.5)}, "rank 0"),
    Case(
        "Mod",
        lambda op, a, b: op.Mod(a, b, fmod=1),
        {"a": between(-5, 5, 3, 4), "b": positive(4)},
        "towards zero",
    ),
    Case(
        "Mod",
        lambda op, a, b: op.Mod(a, b),
        {"a": between(-5, 5, 3, 4), "b": -positive(4)},
        "downwards",
        ort=False,  # of floats: since opset 28
    ),
    Case("Div", lambda op, x: op.Div(x, 8.0), {"x": normal(2, 3)}, "by a number"),
    Case("Div", lambda op, x: op.Div(1.0, x), {"x": positive(2, 3)}, "of a number"),
    Case("Pow", lambda op, x, e: op.Pow(x, e), {"x": positive(2, 3), "e": normal(2, 3)}),
    Case(
        "Pow", lambda op, x, e: op.Pow(x, e), {"x": positive(2, 3), "e": normal()}, "one exponent"
    ),
    Case("Pow", lambda op, x, e: op.Pow(x, e), {"x": positive(1), "e": normal(2, 3)}, "one base"),
    Case("Pow", lambda op, x: op.Pow(x, 2.0), {"x": normal(2, 3)}, "square"),
    Case("Pow", lambda op, x: op.Pow(x, 3), {"x": normal(2, 3)}, "cube"),
    Case("Pow", lambda op, x: op.Pow(x, 0.5), {"x": positive(2, 3)}, "root"),
    Case(
        "Pow",
        lambda op, x: op.Pow(x, np.array([0, 1, 2], np.int64)),
        {"x": np.array([0.0, 0.0, 0.0])},
        "integers, of zero",
    ),
    Case(
        "Pow",
        lambda op, x, e: op.Pow(x, e),
        {"x": np.array([0.0, 0.0, 2.0]), "e": np.array([1.0, 2.0, 0.0])},
        "of zero and by zero",
        tolerance=1e-5,  # 0^1 has a kink in x
        wrt=("e",),
    ),
    Case(
        "Sum",
        lambda op, a, b, c: op.Sum(a, b, c),
        {"a": normal(2, 3), "b": normal(3), "c": normal()},
    ),
    Case("Sum", lambda op, a: op.Sum(a), {"a": normal(2, 3)}, "of one"),
    Case("Mean", lambda op, a, b: op.Mean(a, b), {"a": normal(2, 3), "b": normal(2, 1)}),
    Case(
        "Mean", lambda op, a, b: op.Mean(a, b, a), {"a": normal(2, 3), "b": normal(3)}, "one twice"
    ),
    Case(
        "Max", lambda op, a, b: op.Max(a, b), {"a": spread(2, 3), "b": spread(2, 3, seed=1) + 0.05}
    ),
    Case("Max", lambda op, a, b: op.Max(a, b), {"a": TIED, "b": TIED_TOO}, "ties"),
    Case(
        "Max",
        lambda op, a, b, c: op.Max(a, b, c),
        {"a": spread(2, 3), "b": spread(3) + 0.03, "c": spread(2, 1) + 0.06},
        "broadcast",
    ),
    Case(
        "Max",
        lambda op, a, b, c: op.Max(a, b, c),
        {"a": TIED, "b": TIED, "c": TIED_TOO},
        "three ties",
        differences=False,  # each moved alone says a half, together they must say one
        autograd=False,  # the kernel takes them two by two
    ),
    Case("Max", lambda op, a: op.Max(a), {"a": normal(2, 3)}, "of one"),
    Case("Max", lambda op, x: op.Max(x, 0.0), {"x": spread(2, 3)}, "with a constant"),
    Case("Max", lambda op, x: op.Sqrt(op.Max(x, 0.0)), {"x": spread(2, 3)}, "below a root"),
    Case(
        "Min", lambda op, a, b: op.Min(a, b), {"a": spread(2, 3), "b": spread(2, 3, seed=1) + 0.05}
    ),
    Case("Min", lambda op, a, b: op.Min(a, b), {"a": TIED, "b": TIED_TOO}, "ties"),
    Case(
        "Min",
        lambda op, a, b: op.Min(a, b),
        {"a": spread(2, 3), "b": spread(3) + 0.03},
        "broadcast",
    ),
    Case(
        "Where",
        lambda op, c, a, b: op.Where(c, a, b),
        {"c": normal(2, 3) > 0, "a": normal(2, 3), "b": normal(2, 3, seed=1)},
    ),
    Case(
        "Where",
        lambda op, c, a, b: op.Where(c, a, b),
        {"c": normal(3, 1, 2) > 0, "a": normal(4, 1), "b": normal()},
        "broadcast",
    ),
    Case(
        "Clip",
        lambda op, x, low, high: op.Clip(x, low, high),
        {"x": spread(3, 4), "low": np.array(-0.33), "high": np.array(0.37)},
    ),
    Case(
        "Clip",
        lambda op, x, low: op.Clip(x, low),
        {"x": spread(3, 4), "low": np.array(0.12)},
        "below",
    ),
    Case(
        "Clip",
        lambda op, x, high: op.Clip(x, None, high),
        {"x": spread(3, 4), "high": np.array(0.12)},
        "above",
    ),
    Case("Clip", lambda op, x: op.Clip(x, 0.0, 6.0), {"x": spread(3, 4)}, "constants"),
    Case("Clip", lambda op, x: op.Clip(x), {"x": spread(3, 4)}, "no bounds"),
    Case(
        "Clip",
        lambda op, x, low, high: op.Clip(x, low, high),
        {"x": spread(3, 4), "low": np.array(0.37), "high": np.array(-0.33)},
        "crossed bounds",
    ),
    Case("Clip", lambda op, x: op.Sqrt(op.Clip(x, 0.0)), {"x": spread(2, 3)}, "below a root"),
]
