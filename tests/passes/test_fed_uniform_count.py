"""The size model computes how many random numbers the feeds need."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.errors import UnsupportedModel
from onward.graph.builder import OpBuilder
from onward.passes.fed_uniforms import take_noise
from onward.passes.pipelines import PREPARE
from onward.passes.token_functions import register
from tests.passes.running import run_ort

TRUE, HALF = np.array(True), np.float32(0.5)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def taken(build: Any, *shapes: Any) -> tuple[ir.Model, ir.Model]:
    op = OpBuilder()
    inputs = [op.input(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]
    made = build(op, *inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    model = PREPARE(op.model(**{f"y{i}": y for i, y in enumerate(outputs)}))
    size = take_noise(model)
    assert size is not None
    return model, size


def check(pair: tuple[ir.Model, ir.Model], *arrays: Any) -> int:
    """The size, with which the model must run; one number fewer would not do."""
    model, size = pair
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    wanted = {str(value.name) for value in size.graph.inputs}
    (n,) = run_ort(size, {name: array for name, array in feeds.items() if name in wanted})
    run_ort(model, {**feeds, "noise": np.zeros(int(n), np.float32)})
    with pytest.raises(Exception, match=r"reshape|Reshape|broadcast|INVALID|Non-zero"):
        run_ort(model, {**feeds, "noise": np.zeros(int(n) - 1, np.float32)})
    return int(n)


def operators(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph}


def test_named_sizes_are_read_from_the_inputs() -> None:
    """A transformer's block: attention dropout, output dropout; not one matrix product is left."""

    def block(op: OpBuilder, x: Any) -> Any:
        shares = op.Softmax(op.MatMul(x, op.Transpose(x, perm=[0, 2, 1])), axis=-1)
        y = op.MatMul(op.Dropout(shares, HALF, TRUE), x)
        return op.Dropout(op.Add(op.MatMul(y, real(4, 4)), real(4)), HALF, TRUE)

    pair = taken(block, ("batch", "time", 4))
    assert operators(pair[1]) <= {"Shape", "Mul", "Add", "Squeeze"}
    assert check(pair, real(2, 5, 4)) == 2 * 5 * 5 + 2 * 5 * 4
    assert check(pair, real(3, 1, 4)) == 3 + 3 * 4


def test_elements_are_counted_through_reshapes() -> None:
    """ONNX does not infer a Flatten or Reshape of unknown sizes, but the number is the same."""

    def build(op: OpBuilder, x: Any) -> Any:
        flat = op.Flatten(op.Relu(x), axis=2)
        return op.Dropout(op.Reshape(flat, [-1]), HALF, TRUE)

    pair = taken(build, ("a", "b", "c"))
    assert operators(pair[1]) <= {"Shape", "Mul", "Squeeze"}
    assert check(pair, real(2, 3, 4)) == 24


def test_unknown_sizes_are_computed() -> None:
    """The forward computation, without what does not matter to the shape."""

    def build(op: OpBuilder, x: Any, y: Any) -> Any:
        first = op.Dropout(op.Conv(x, real(2, 1, 3), strides=[2]), HALF, TRUE)
        last = op.Dropout(op.Conv(first, real(2, 2, 2)), HALF, TRUE)
        return op.MatMul(last, op.Softmax(y, axis=-1))

    pair = taken(build, ("n", 1, "time"), ("any", 3))
    assert [value.name for value in pair[1].graph.inputs] == ["x0"]
    assert not operators(pair[1]) & {"Dropout", "MatMul", "Softmax"}
    assert check(pair, real(2, 1, 9), real(3, 3)) == 2 * 2 * 4 + 2 * 2 * 3


def test_zeros_have_the_shape_of_random_tensors() -> None:
    def build(op: OpBuilder, x: Any) -> Any:
        flags = op.Squeeze(op.Greater(op.Slice(x, [0], [1], [1]), 0.0), [1])
        kept = op.Compress(x, flags, axis=0)
        noisy = op.Add(op.RandomNormalLike(kept), op.RandomUniform(shape=[1, 3]))
        drops = op.Dropout(op.Concat(noisy, noisy, axis=0), HALF, TRUE)
        classes = op.Multinomial(drops, sample_size=2)
        sums = op.Cast(op.ReduceSum(classes, keepdims=0), to=1)
        return op.Add(op.Bernoulli(op.Sigmoid(noisy)), sums)

    pair = taken(build, ("n", 3))
    x = np.float32([[1, 0, 0], [-1, 0, 0], [2, 0, 0], [3, 0, 0]])
    rows = 3
    assert check(pair, x) == (rows * 3 + 1) + 3 + 2 * rows * 3 + 2 * rows * 2 + rows * 3


def test_random_size_is_refused() -> None:
    def build(op: OpBuilder, x: Any) -> Any:
        chosen = op.Compress(x, op.Cast(op.Bernoulli(x), to=9), axis=0)
        return op.Dropout(op.Relu(chosen), HALF, TRUE)

    with pytest.raises(
        UnsupportedModel, match=r"depends on random numbers itself: the shape of .* is drawn\nmake"
    ):
        taken(build, ("n",))


def test_shapes_of_random_values_are_not_random() -> None:
    def build(op: OpBuilder, x: Any) -> Any:
        noisy = op.RandomUniformLike(op.Conv(x, real(1, 1, 3)))
        wide = op.Expand(noisy, op.Mul(op.Shape(noisy), np.int64([1, 2, 1])))
        return op.Dropout(wide, HALF, TRUE)

    assert check(taken(build, (1, 1, "time")), real(1, 1, 7)) == 5 + 2 * 5


def test_empty_tensors_need_no_numbers() -> None:
    model, size = taken(lambda op, x: op.Dropout(x, HALF, TRUE), ("n", 3))
    (n,) = run_ort(size, {"x0": real(0, 3)})
    assert n == 0
    (y,) = run_ort(model, {"x0": real(0, 3), "noise": np.zeros(0, np.float32)})
    assert y.shape == (0, 3)


def test_an_input_without_names_is_read_axis_by_axis() -> None:
    pair = taken(lambda op, x: op.Dropout(x, HALF, TRUE), (None, 3, None))
    assert check(pair, real(2, 3, 5)) == 30


def test_rows_that_are_left_out_are_counted_by_their_indices() -> None:
    """The shape after PackTokens depends on how many rows are kept, not on dropout before it."""
    op = OpBuilder()
    x = op.input("x0", "float32", (None, 4))
    indices = [op.input(name, "int64", (None,)) for name in ("x1", "x2")]
    y = op.node("PackTokens", (op.Dropout(x, HALF, TRUE), *indices), {}, domain="onward")
    z = op.Reshape(y, op.Concat(op.Shape(y, start=0, end=1), [2, 2], axis=0))
    model = op.model(y0=op.Dropout(z, HALF, TRUE))
    register(model, "PackTokens")
    model = PREPARE(model)
    size = take_noise(model)
    assert size is not None
    kept, rows = np.array([0, 2]), np.array([0, 2, 1])
    assert check((model, size), real(3, 4), kept, rows) == 3 * 4 + 2 * 4
