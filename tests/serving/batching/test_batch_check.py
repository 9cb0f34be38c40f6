"""batch_check: models whose answers depend on their batch are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.serving.batching.batch import BatchLayout, MaskInput, PaddedInput
from onward.serving.batching.batch_check import (
    NotRunnable,
    find_changed_answer,
    one_line,
    random_feeds,
    run_once,
)
from onward.serving.requests import Array, TensorSpec
from tests.serving.instances import FunctionInstance, SessionInstance, doubler

AXES = {"x": 0, "y": 0}
LAYOUT = BatchLayout(AXES)


def mlp(op: onward.OpBuilder) -> ir.Value:
    random = np.random.default_rng(0)
    x = op.input("x", "float32", ("batch", 4))
    return op.Relu(op.MatMul(x, random.normal(size=(4, 3)).astype(np.float32)))


def normalised_over_the_batch(op: onward.OpBuilder) -> ir.Value:
    x = op.input("x", "float32", ("batch", 4))
    return op.Sub(x, op.ReduceMean(x, np.array([0]), keepdims=1))


def softmax_over_the_batch(op: onward.OpBuilder) -> ir.Value:
    return op.Softmax(op.input("x", "float32", ("batch", 4)), axis=0)


def summed_along_the_batch(op: onward.OpBuilder) -> ir.Value:
    return op.CumSum(op.input("x", "float32", ("batch", 4)), np.array(0))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (mlp, ""),
        (normalised_over_the_batch, "joining requests changes answers: output 'y' differs by"),
        (softmax_over_the_batch, "joining requests changes answers: output 'y' differs by"),
        (summed_along_the_batch, "joining requests changes answers: output 'y' differs by"),
    ],
)
def test_a_model_that_mixes_rows_is_found(
    build: Callable[[onward.OpBuilder], ir.Value], reason: str
) -> None:
    op = onward.OpBuilder()
    instance = SessionInstance(op.model(y=build(op)))
    found = find_changed_answer(instance, LAYOUT, 32)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    instance.close()


def test_an_output_whose_rows_are_not_those_of_the_batch_is_found() -> None:
    instance = doubler(function=lambda x: {"y": np.concatenate([x, x])[:3]})
    reason = find_changed_answer(instance, LAYOUT, 32)
    assert "output 'y' has the shape [3, 2] for a batch of 4 rows" in reason


def test_random_answers_are_found() -> None:
    random = np.random.default_rng(0)
    instance = doubler(function=lambda x: {"y": random.normal(size=x.shape)})
    reason = find_changed_answer(instance, LAYOUT, 32)
    assert reason.startswith("its answers change from run to run: output 'y' differs by")


def test_texts_that_are_padded_to_the_longest_of_a_batch_are_found() -> None:
    specs = [TensorSpec("x", "BYTES", (-1,))], [TensorSpec("y", "FP32", (-1, -1))]

    def lengths(x: Array) -> dict[str, Array]:
        longest = max(len(text.split()) for text in x.tolist())
        return {"y": np.zeros((len(x), longest), np.float32)}

    reason = find_changed_answer(FunctionInstance(*specs, lengths), LAYOUT, 32)
    assert reason.startswith("joining requests changes answers: output 'y' has the shape")


def test_integers_and_texts_must_be_equal() -> None:
    specs = [TensorSpec("x", "INT64", (-1, 4))], [TensorSpec("y", "INT64", (-1, 4))]
    assert not find_changed_answer(FunctionInstance(*specs, lambda x: {"y": x}), LAYOUT, 8)
    first = FunctionInstance(*specs, lambda x: {"y": x + len(x) // 4})
    reason = find_changed_answer(first, LAYOUT, 8)
    assert reason == "joining requests changes answers: output 'y' is different"
    specs = [TensorSpec("x", "BYTES", (-1,))], [TensorSpec("y", "BYTES", (-1,))]
    assert not find_changed_answer(FunctionInstance(*specs, lambda x: {"y": x + "b"}), LAYOUT, 8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounding_is_no_difference(dtype: type[np.floating]) -> None:
    limit = {np.float16: 1e-3, np.float32: 1e-6}[dtype]
    instance = doubler(function=lambda x: {"y": (x * (1 + limit * len(x))).astype(dtype)})
    assert find_changed_answer(instance, LAYOUT, 32) == ""


def test_no_more_rows_than_the_maximum_are_joined() -> None:
    instance = doubler()
    assert find_changed_answer(instance, LAYOUT, 2) == ""
    assert max(len(feeds["x"]) for feeds in instance.ran) == 2


def test_larger_free_axes_are_tried_if_small_ones_cannot_be_run() -> None:
    def crop(x: np.ndarray) -> dict[str, np.ndarray]:
        if x.shape[1] < 30:
            raise ValueError("too small")
        return {"y": x[:, :30]}

    specs = [TensorSpec("x", "FP32", (-1, -1))], [TensorSpec("y", "FP32", (-1, 30))]
    assert find_changed_answer(FunctionInstance(*specs, crop), LAYOUT, 32) == ""


def test_a_model_that_random_feeds_do_not_fit_says_so() -> None:
    def fail(x: np.ndarray) -> dict[str, np.ndarray]:
        raise ValueError("needs\na   face")

    with pytest.raises(NotRunnable, match="cannot be run with random feeds: needs a face"):
        find_changed_answer(doubler(function=fail), LAYOUT, 32)
    with pytest.raises(NotRunnable):
        run_once(doubler(function=fail), BatchLayout({}))


def test_a_model_that_fails_only_for_batches_says_so() -> None:
    def only_small(x: np.ndarray) -> dict[str, np.ndarray]:
        if len(x) > 2:
            raise ValueError("too many rows")
        return {"y": x}

    reason = find_changed_answer(doubler(function=only_small), LAYOUT, 32)
    assert reason == "joined requests cannot be run: too many rows"


def masked_mean(x: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    weights = mask[:, :, None].astype(np.float32)
    return {"y": (x * weights).sum(1) / weights.sum(1), "z": x * 2}


def plain_mean(x: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": x.mean(1), "z": x * 2}


@pytest.mark.parametrize(("function", "is_same"), [(masked_mean, True), (plain_mean, False)])
@pytest.mark.parametrize("length", [-1, 16])
def test_padding_with_mask_is_checked(
    function: Callable[..., dict[str, np.ndarray]], is_same: bool, length: int
) -> None:
    instance = FunctionInstance(
        [
            TensorSpec("x", "FP32", (-1, length, 3), ("batch", "length", "")),
            TensorSpec("mask", "INT64", (-1, length), ("batch", "length")),
        ],
        [TensorSpec("y", "FP32", (-1, 3)), TensorSpec("z", "FP32", (-1, length, 3))],
        function,
    )
    sizes = () if length == -1 else (length,)
    layout = BatchLayout(
        {"x": 0, "mask": 0, "y": 0, "z": 0},
        padded={"x": PaddedInput(1, 0, sizes), "mask": PaddedInput(1, 0, sizes)},
        cuts={"z": (1, "x")},
        masks={"mask": MaskInput("x", np.dtype(np.int64), 2)},
    )
    reason = find_changed_answer(instance, layout, 32)
    # where all requests are padded to the only length, none can be run without padding
    assert (reason == "") == (is_same or length != -1)
    assert len({feeds["x"].shape for feeds in instance.ran}) >= (2 if length == -1 else 1)


def test_filling_up_to_fixed_sizes_is_checked() -> None:
    def last_row(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"y": x - x[-1:]}

    layout = BatchLayout(AXES, (8,))
    assert find_changed_answer(doubler(), layout, 8) == ""
    assert "changes answers" in find_changed_answer(doubler(function=last_row), layout, 8)


def test_free_axes_of_one_name_have_one_size() -> None:
    specs = [
        TensorSpec("a", "FP32", (-1, -1, 3), ("batch", "length", "")),
        TensorSpec("b", "BOOL", (-1, -1), ("length", "batch")),
        TensorSpec("c", "INT64", (-1, -1), ("", "")),
    ]
    feeds = random_feeds(specs, {"a": 0, "b": 1, "c": 0}, 2, 8, {"length": 5}, 0)
    assert {name: feed.shape for name, feed in feeds.items()} == {
        "a": (2, 5, 3),
        "b": (5, 2),
        "c": (2, 8),
    }
    assert feeds["b"].dtype == np.bool_
    assert set(np.unique(feeds["c"])) <= {0, 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "/onnxruntime_src/core/reshape_helper.h:91 onnxruntime::ReshapeHelper::ReshapeHelper("
            "const onnxruntime::TensorShape&, onnxruntime::TensorShapeVector&, bool) "
            "size == wanted was false. Input shape:{2,2}, requested shape:{3,3}\n",
            "size == wanted was false. Input shape:{2,2}, requested shape:{3,3}",
        ),
        (
            "/src/x.h:563 void onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) "
            "axis == 1 (or largest) was false.",
            "axis == 1 (or largest) was false.",
        ),
        (
            "/src/y.cc:7 virtual onnxruntime::common::Status onnxruntime::Op<T>::Compute("
            "onnxruntime::OpKernelContext*) const [with T = float] a was false.",
            "a was false.",
        ),
        ("invalid expand shape", "invalid expand shape"),
    ],
)
def test_one_line_leaves_out_the_place_in_the_engine(text: str, expected: str) -> None:
    given = (
        "onnxruntime failed: [ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while "
        f"running Reshape node. Name:'/head/Reshape_1' Status Message: {text}"
    )
    found = one_line(RuntimeError(given))
    assert found == f"onnxruntime failed: Reshape node '/head/Reshape_1': {expected}"


def test_one_line_cuts_long_messages() -> None:
    assert one_line(ValueError("a\nb")) == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 999))) == 303


def scaled_by_the_largest(x: Array) -> dict[str, Array]:
    """As DynamicQuantizeLinear: one scale for all rows."""
    step = max(np.abs(x).max(), 1e-9) / 127
    return {"y": np.round(x / step).astype(np.float32) * np.float32(step)}


def with_the_largest_of_the_batch(x: Array) -> dict[str, Array]:
    return {"y": x + x.max(initial=0)}


def clipped_if_one_is_large(x: Array) -> dict[str, Array]:
    return {"y": x if np.abs(x).max() < 50 else np.clip(x, -1, 1)}


@pytest.mark.parametrize("max_rows", [2, 3, 32])
@pytest.mark.parametrize(
    ("function", "datatype"),
    [
        (scaled_by_the_largest, "FP32"),
        (clipped_if_one_is_large, "FP32"),
        (with_the_largest_of_the_batch, "INT64"),
        (with_the_largest_of_the_batch, "UINT8"),
    ],
)
def test_a_model_that_only_contrasting_rows_change_is_found(
    function: Callable[..., dict[str, Array]], datatype: str, max_rows: int
) -> None:
    specs = [TensorSpec("x", datatype, (-1, 4096))], [TensorSpec("y", datatype, (-1, 4096))]
    reason = find_changed_answer(FunctionInstance(*specs, function), LAYOUT, max_rows)
    assert reason.startswith("joining requests changes answers: output 'y'")


def test_answers_that_long_texts_of_others_change_are_found() -> None:
    specs = [TensorSpec("x", "BYTES", (-1, 64))], [TensorSpec("y", "INT64", (-1, 64))]

    def long_ones(x: Array) -> dict[str, Array]:
        counts = np.vectorize(len)(x)
        return {"y": np.full(x.shape, 0 if counts.max() > 20 else 1)}

    reason = find_changed_answer(FunctionInstance(*specs, long_ones), LAYOUT, 32)
    assert reason == "joining requests changes answers: output 'y' is different"


def test_a_model_that_takes_no_contrasting_requests_is_compared_without_them() -> None:
    def refuse(x: Array) -> dict[str, Array]:
        if not x.any() or np.abs(x).max() > 10:
            raise ValueError("not such")
        return {"y": x}

    assert find_changed_answer(doubler(function=refuse), LAYOUT, 32) == ""


def test_rounding_of_zeros_is_no_difference() -> None:
    instance = doubler(function=lambda x: {"y": x + np.float32(1e-7 * len(x))})
    assert find_changed_answer(instance, LAYOUT, 32) == ""


def test_answers_that_padding_of_short_requests_changes_are_found() -> None:
    def first_of_long_ones(x: Array) -> dict[str, Array]:
        return {"y": x[:, :1] * np.float32(1 if x.shape[1] < 2 else 2)}

    instance = FunctionInstance(
        [TensorSpec("x", "FP32", (-1, -1))], [TensorSpec("y", "FP32", (-1, 1))], first_of_long_ones
    )
    layout = BatchLayout(AXES, padded={"x": PaddedInput(1)})
    assert find_changed_answer(instance, layout, 32).startswith("joining requests changes answers")
