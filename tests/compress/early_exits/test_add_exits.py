"""add_exits: rows that go on are unchanged; what cannot have exits is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward import InferenceSession
from onward.compress import add_exits, set_thresholds
from onward.errors import DataError, OptionError, UnsupportedModel
from onward.graph.builder import OpBuilder
from onward.graph.protos import to_proto

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def weight(op: OpBuilder, name: str, *shape: int) -> ir.Value:
    array = np.random.default_rng(len(name)).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return op.initializer(name, array.astype(np.float32))


def image_model(batch: int | str = "batch", *, final: str = "") -> ir.Model:
    """Two convolutions with a residual that crosses the exit, and a Reshape to fixed sizes."""
    op = OpBuilder()
    x = op.input("x", "float32", (batch, 3, 6, 6))
    a = op.Relu(op.Conv(x, weight(op, "w1", 8, 3, 3, 3), pads=[1, 1, 1, 1]))
    a.name = "inner"
    b = op.Conv(a, weight(op, "w22", 8, 8, 3, 3), pads=[1, 1, 1, 1])
    c = op.Add(op.Relu(b), op.ReduceMean(x, [1], keepdims=1))  # reads the input again
    flat = op.Reshape(c, [batch if isinstance(batch, int) else 0, -1])
    y = op.MatMul(flat, weight(op, "w333", 288, 4))
    return op.model(y=op.Softmax(y, axis=-1) if final == "softmax" else y)


def token_model() -> ir.Model:
    """Tokens with a learned first token, expanded to the batch by Shape; a mask crosses."""
    op = OpBuilder()
    ids = op.input("ids", "int64", ("batch", "tokens"))
    mask = op.input("mask", "float32", ("batch", "tokens"))
    x = op.Gather(weight(op, "table", 20, 8), ids)
    rows = op.Shape(ids, start=0, end=1)
    ones = op.constant(np.array([1], np.int64))
    size = op.constant(np.array([8], np.int64))
    first = op.Expand(weight(op, "first", 1, 1, 8), op.Concat(rows, ones, size, axis=0))
    x = op.Relu(op.MatMul(op.Add(x, first), weight(op, "w1", 8, 8)))
    x.name = "inner"
    x = op.Add(op.Tanh(op.MatMul(x, weight(op, "w22", 8, 8))), first)
    x.name = "later"
    x = op.Mul(x, op.Unsqueeze(mask, [2]))
    picked = op.GatherND(
        x, op.Concat(row_numbers(op, rows), row_numbers(op, rows, 0), axis=1)
    )  # row i, token 0
    pooled = op.Add(op.ReduceMean(x, [1], keepdims=0), picked)
    return op.model(y=op.MatMul(pooled, weight(op, "w333", 8, 3)))


def row_numbers(op: OpBuilder, rows: ir.Value, times: int = 1) -> ir.Value:
    zero, one = np.int64(0), np.int64(1)
    numbers = op.Range(zero, op.Squeeze(rows, [0]), one)
    made: ir.Value = op.Unsqueeze(op.Mul(numbers, np.int64(times)), [1])
    return made


def feeds_of(model: ir.Model, rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    if model.graph.inputs[0].name == "x":
        return {"x": rng.standard_normal((rows, 3, 6, 6)).astype(np.float32)}
    return {
        "ids": rng.integers(0, 20, (rows, 5)),
        "mask": np.ones((rows, 5), np.float32),
    }


def check_rows(model: ir.Model, made: ir.Model, exits: int, rows: int) -> None:
    """Rows that go on equal the plain model's, whoever leaves; shapes stay."""
    feeds = feeds_of(model, rows)
    [y] = InferenceSession(model).run(["y"], feeds)
    z, taken = InferenceSession(made).run(["y", "exit"], feeds)
    assert z.shape == y.shape and taken.shape == (rows,)
    np.testing.assert_allclose(z[taken == exits], y[taken == exits], atol=1e-5)


@pytest.mark.parametrize("thresholds", [2.0, -1.0, 0.3])
@pytest.mark.parametrize("criterion", ["max_softmax", "entropy", "margin"])
def test_rows_that_go_on_are_unchanged(thresholds: float, criterion: str) -> None:
    model = image_model()
    made = add_exits(model, ["inner"], criterion=criterion).model
    set_thresholds(made, [thresholds])
    for rows in (1, 7):
        check_rows(model, made, 1, rows)
    [taken] = InferenceSession(made).run(["exit"], feeds_of(model, 7))
    if thresholds != 0.3:
        assert (taken == (1 if thresholds > 1 else 0)).all()


@pytest.mark.parametrize("make", [image_model, token_model])
def test_stock_onnxruntime_runs_the_result(make: Any) -> None:
    made = add_exits(make(), ["inner"]).model
    data = to_proto(made).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feeds = feeds_of(made, 3)
    for y, z in zip(session.run(None, feeds), InferenceSession(made).run(None, feeds), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_several_exits_and_values_that_shapes_are_computed_from() -> None:
    model = token_model()
    made = add_exits(model, ["later", "inner"], seed=1).model
    confidences = [0.36, 0.36]
    seen: set[int] = set()
    for step in range(12):
        thresholds = [0.33 + 0.01 * step, confidences[1]]
        set_thresholds(made, thresholds)
        check_rows(model, made, 2, 9)
        seen |= set(InferenceSession(made).run(["exit"], feeds_of(model, 9))[0].tolist())
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("final", ["", "softmax"])
def test_a_fixed_batch_of_one(final: str) -> None:
    model = image_model(1, final=final)
    made = add_exits(model, ["inner"]).model
    assert InferenceSession(made).get_inputs()[0].shape == [1, 3, 6, 6]
    assert InferenceSession(made).get_outputs()[0].shape == [1, 4]
    for threshold in (2.0, -1.0):
        check_rows(model, set_thresholds(made, [threshold]), 1, 1)
    [y] = InferenceSession(made).run(["y"], feeds_of(model, 1))
    assert y.shape == (1, 4) and (not final or np.isclose(y.sum(), 1))


@pytest.mark.integration
def test_heads_learn_the_networks_answers_without_labels() -> None:
    """The class is the sign of a channel, which the exit can see."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 6))
    a = op.MatMul(x, np.eye(6, dtype=np.float32))
    a.name = "inner"
    pick = np.zeros((6, 2), np.float32)
    pick[0] = [4, -4]
    b = a
    for _ in range(3):
        b = op.MatMul(b, np.eye(6, dtype=np.float32))
    model = op.model(y=op.MatMul(b, pick))
    data = {"x": RNG.standard_normal((200, 6)).astype(np.float32)}
    report = add_exits(model, ["inner"], data=data, drop="2%", steps=100)
    first, last = report.details["exits"]
    changed = first["share"] * (1 - first["accuracy"])  # of all held-out rows, as the budget counts
    assert first["share"] > 0.5 and changed <= 0.02
    assert report.details["lost"] <= 0.02 and last["share"] < 0.5
    z, taken = InferenceSession(report.model).run(["y", "exit"], data)
    [y] = InferenceSession(model).run(["y"], data)
    assert np.mean(z.argmax(1) == y.argmax(1)) > 0.94 and np.mean(taken == 0) > 0.5
    again = add_exits(model, ["inner"], data=data, drop=0.02, steps=100)
    assert again.details["thresholds"] == report.details["thresholds"]


@pytest.mark.integration
def test_training_together_is_kept_only_if_it_saves_more() -> None:
    model = image_model()
    x = feeds_of(model, 64)["x"]
    label = (x[:, 0].mean(axis=(1, 2)) > 0).astype(np.int64)
    report = add_exits(
        model,
        ["inner"],
        data={"x": x, "label": label},
        target="label",
        frozen=False,
        drop=0.1,
        steps=20,
    )
    assert report.metric_name == "accuracy" and report.after.quality is not None
    before = InferenceSession(model).run(["y"], {"x": x})[0]
    set_thresholds(report.model, [2.0])
    same = np.allclose(InferenceSession(report.model).run(["y"], {"x": x})[0], before, atol=1e-4)
    assert same != report.details["trained_together"]


@pytest.mark.integration
def test_an_exit_that_is_never_sure_lets_no_row_leave() -> None:
    """The answer comes from an input that the exit does not see."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 6))
    y = op.input("z", "float32", ("batch", 2))
    a = op.Relu(x)
    a.name = "inner"
    model = op.model(y=op.Add(op.ReduceSum(op.Mul(a, 1e-6), [1], keepdims=1), y))
    data = {
        "x": RNG.standard_normal((60, 6)).astype(np.float32),
        "z": RNG.standard_normal((60, 2)).astype(np.float32),
    }
    report = add_exits(model, ["inner"], data=data, drop=0.0, steps=3)
    assert not report.helped or report.details["exits"][0]["share"] < 0.3
    assert report.details["lost"] == 0


def batch_mean_model() -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 6, 6))
    a = op.Relu(x)
    a.name = "inner"
    b = op.Sub(a, op.ReduceMean(a, [0], keepdims=1))
    return op.model(y=op.MatMul(op.Flatten(b), weight(op, "w", 108, 4)))


def two_outputs() -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 6, 6))
    a = op.Relu(x)
    a.name = "inner"
    b = op.Flatten(op.Tanh(a))
    return op.model(y=op.MatMul(b, weight(op, "w", 108, 4)), features=b)


@pytest.mark.parametrize(
    ("make", "at", "words"),
    [
        (image_model, ["iner"], "no inner value 'iner'"),
        (image_model, [], "no exits"),
        (image_model, ["inner", "inner"], "two exits"),
        (batch_mean_model, ["inner"], "depend on each other"),
        (two_outputs, ["inner"], "needed for an output"),
    ],
)
def test_what_cannot_have_exits_is_refused(make: Any, at: list[str], words: str) -> None:
    with pytest.raises((OptionError, UnsupportedModel), match=words):
        add_exits(make(), at)


def test_bad_options_and_data() -> None:
    model = image_model()
    data = feeds_of(model, 30)
    for options, words in [
        ({"drop": 2}, "drop must be"),
        ({"drop": "much"}, "is not a share"),
        ({"criterion": "luck"}, "no criterion"),
        ({"head": "big"}, "no head"),
        ({"output": "z"}, "no output 'z'"),
    ]:
        with pytest.raises(OptionError, match=words):
            add_exits(model, ["inner"], data=data, **options)
    with pytest.raises(DataError, match="has 5 rows"):
        add_exits(model, ["inner"], data=feeds_of(model, 5))
    labels = {**data, "label": np.full(30, 9)}
    with pytest.raises(DataError, match="labels are from 9"):
        add_exits(model, ["inner"], data=labels, target="label")
