"""Sizes of 0 in every kernel that calls a fused function of torch: the standard's result.

What onnxruntime or ONNX's reference answers is the answer; where neither has one, a clear error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

import onward
from onward.errors import ProviderError
from onward.providers.torch.kernels.empty_tensors import empty_from, zeros_from
from tests.providers.torch.one_node import Array, run_op
from tests.providers.torch.ort_node import ort_op
from tests.providers.torch.reference import reference_op

Case = tuple[str, list[Array | None], dict[str, Any], int, int]  # ..., outputs, opset
TWO = np.array([5, 6], np.float32)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def numbers(*values: Any) -> Array:
    return np.array(values, np.int64)


def case(
    op: str, *inputs: Array | None, outputs: int = 1, opset: int = 21, **attributes: Any
) -> Case:
    return op, list(inputs), attributes, outputs, opset


# What onnxruntime answers.
BY_ORT = [
    # convolutions: no images, no channels (the bias is left), no filters, no pixels
    case("Conv", ones(0, 1, 5, 5), ones(2, 1, 3, 3), TWO),
    case("Conv", ones(0, 1, 5), ones(2, 1, 3), auto_pad="SAME_UPPER"),
    case("Conv", ones(1, 1, 5, 5), ones(0, 1, 3, 3)),
    case("ConvTranspose", ones(0, 1, 3, 3), ones(1, 2, 3, 3)),
    case("ConvTranspose", ones(1, 1, 0, 3), ones(1, 2, 3, 3), TWO),
    case("ConvTranspose", ones(1, 1, 0, 3), ones(1, 2, 3, 3), strides=[2, 2]),
    # pools
    case("AveragePool", ones(0, 2, 5, 5), kernel_shape=[3, 3]),
    case("AveragePool", ones(0, 2, 5), kernel_shape=[3], pads=[1, 0]),
    case("MaxPool", ones(0, 2, 5, 5), kernel_shape=[3, 3], outputs=2),
    case("LpPool", ones(0, 2, 5, 5), kernel_shape=[3, 3]),
    case("GlobalMaxPool", ones(0, 3, 2, 4)),
    case("GlobalAveragePool", ones(0, 3, 2, 4)),
    # products and sums
    case("MatMul", ones(2, 0), ones(0, 3)),
    case("MatMul", ones(0, 2, 3), ones(3, 4)),
    case("Gemm", ones(2, 0), ones(0, 3), ones(3)),
    case("Einsum", ones(2, 0), ones(0, 3), equation="ij,jk->ik"),
    case("CumSum", ones(2, 0), np.array(1)),
    case("ReduceSum", ones(2, 0), numbers(1)),
    case("ReduceProd", ones(2, 0), numbers(1)),
    case("ReduceL2", ones(2, 0), numbers(1)),
    case("ReduceMax", ones(0, 3), numbers(1)),
    case("ReduceLogSumExp", ones(0, 3), numbers(1)),
    # positions: no answer of one element may be asked for
    case("ArgMax", ones(0, 3), axis=1),
    case("ArgMax", ones(0, 0), axis=1),
    case("ArgMax", ones(0, 3, 0), axis=2, keepdims=0),
    case("ArgMin", ones(0, 0), axis=1, select_last_index=1),
    case("TopK", ones(2, 0), numbers(0), outputs=2),
    case("NonZero", ones(0, 3)),
    case("GatherND", ones(2, 3), np.zeros((2, 0), np.int64)),
    case("GatherND", ones(2, 3), np.zeros((2, 4, 0), np.int64), batch_dims=1),
    case("GatherND", ones(0, 3), np.zeros((0, 1), np.int64)),
    case("Gather", ones(2, 3), np.zeros((0,), np.int64)),
    case("GatherElements", ones(2, 3), np.zeros((0, 3), np.int64)),
    case("ScatterElements", ones(2, 3), np.zeros((0, 3), np.int64), ones(0, 3)),
    case("ScatterND", ones(2, 3), np.zeros((0, 1), np.int64), ones(0, 3)),
    # activations and norms
    case("Hardmax", ones(2, 0)),
    case("Softmax", ones(2, 0)),
    case("Softmax", ones(0, 2)),
    case("LogSoftmax", ones(2, 0)),
    case("LRN", ones(0, 5, 2, 2), size=3),
    case("LRN", ones(1, 5, 2, 0), size=3),
    case("LRN", ones(1, 0, 2, 2), size=3),
    case("LayerNormalization", ones(0, 3), ones(3), ones(3), outputs=3),
    case("InstanceNormalization", ones(0, 2, 3), ones(2), ones(2)),
    case("InstanceNormalization", ones(1, 2, 0), ones(2), ones(2)),
    case("BatchNormalization", ones(0, 2, 3), *[ones(2)] * 4),
    # images and signals
    case("Resize", ones(1, 1, 2, 0), None, np.array([1, 1, 2, 2], np.float32), mode="nearest"),
    case("Resize", ones(0, 1, 2, 2), None, np.array([1, 1, 2, 2], np.float32), mode="linear"),
    case("GridSample", ones(0, 1, 3, 3), ones(0, 2, 2, 2), opset=20),
    case("GridSample", ones(1, 1, 3, 3), ones(1, 0, 2, 2), opset=20),
    case("DynamicQuantizeLinear", ones(0), outputs=3),
    # shapes
    case("Concat", ones(0, 3), ones(2, 3), axis=0),
    case("Split", ones(0, 4), numbers(2, 2), axis=1, outputs=2),
    case("SplitToSequence", ones(3, 0), axis=1),
    case("SplitToSequence", ones(0, 3), np.array(2), axis=0),
    case("SplitToSequence", ones(0, 3), axis=0, keepdims=0),
]

# Where onnxruntime ends the process on x86-64, dividing by zero: results without elements.
BY_SHAPE: list[tuple[Case, list[tuple[int, ...]]]] = [
    (case("TopK", ones(0, 3), numbers(2), outputs=2), [(0, 2), (0, 2)]),
    (case("DFT", ones(2, 0, 1), axis=1, opset=19), [(2, 0, 2)]),
    (case("DFT", ones(2, 0, 2), axis=1, inverse=1, opset=19), [(2, 0, 2)]),
    (case("DFT", ones(0, 3, 2), axis=1, inverse=1, opset=19), [(0, 3, 2)]),
    (case("DFT", ones(0, 3, 1), axis=1, opset=19), [(0, 3, 2)]),
    (case("DFT", ones(0, 4, 1), axis=1, onesided=1, opset=19), [(0, 3, 2)]),
]

# What only ONNX's reference answers: onnxruntime refuses it.
BY_REFERENCE = [
    case("Conv", ones(1, 0, 5, 5), ones(2, 0, 3, 3), TWO),  # onnxruntime never comes back
    case("Conv", ones(1, 1, 0, 5), ones(2, 1, 3, 3), pads=[1, 1, 1, 1]),
    case("ConvTranspose", ones(1, 0, 3, 3), ones(0, 2, 3, 3), TWO),  # memory that it never wrote
    case("AveragePool", ones(1, 0, 5, 5), kernel_shape=[3, 3]),
    case("MaxPool", ones(1, 0, 5, 5), kernel_shape=[3, 3]),
    case("MaxPool", ones(1, 1, 0, 5), kernel_shape=[2, 2], strides=[2, 2]),
    case("LpPool", ones(1, 0, 5, 5), kernel_shape=[3, 3]),
    case("GlobalMaxPool", ones(2, 0, 2, 4)),
    case("Attention", ones(0, 2, 3, 4), ones(0, 2, 5, 4), ones(0, 2, 5, 4), opset=23),
    case("Attention", ones(1, 2, 0, 4), ones(1, 2, 5, 4), ones(1, 2, 5, 4), opset=23),
]


def named(cases: list[Case]) -> list[Any]:
    def shapes(inputs: list[Array | None]) -> str:
        return " ".join(str(x.shape) for x in inputs if x is not None)

    return [pytest.param(*each, id=f"{each[0]} {shapes(each[1])}") for each in cases]


def check(got: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        if isinstance(other, list):
            assert [x.shape for x in one] == [x.shape for x in other]
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("op, inputs, attributes, outputs, opset", named(BY_ORT))
def test_empty_tensors_match_onnxruntime(
    op: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int, opset: int
) -> None:
    wanted = ort_op(op, inputs, attributes, outputs, opset)
    check(run_op(op, inputs, attributes, outputs, opset), wanted)


@pytest.mark.parametrize("op, inputs, attributes, outputs, opset", named(BY_REFERENCE))
def test_empty_tensors_match_the_reference(
    op: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int, opset: int
) -> None:
    wanted = reference_op(op, inputs, attributes, outputs, opset)
    check(run_op(op, inputs, attributes, outputs, opset), wanted)


@pytest.mark.parametrize("given, shapes", BY_SHAPE, ids=lambda value: str(value[0]))
def test_empty_tensors_have_the_right_shape(given: Case, shapes: list[tuple[int, ...]]) -> None:
    op, inputs, attributes, outputs, opset = given
    assert [y.shape for y in run_op(op, inputs, attributes, outputs, opset)] == shapes


LAYERS = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("time, batch", [(0, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("op", LAYERS)
def test_empty_recurrent_layer_keeps_its_initial_state(
    op: str,
    in_steps: bool,
    lengths: bool,
    direction: str,
    time: int,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On every processor: torch's own refuse some of these on x86-64, and onnxruntime's die."""
    monkeypatch.setattr(
        "onward.providers.torch.kernels.recurrent._steps_are_faster", lambda x: in_steps
    )
    directions, gates = 1 + (direction == "bidirectional"), LAYERS[op]
    state = np.arange(directions * batch * 2, dtype=np.float32).reshape(directions, batch, 2)
    inputs: list[Array | None] = [
        ones(time, batch, 3),
        ones(directions, gates * 2, 3),
        ones(directions, gates * 2, 2),
        None,
        np.zeros(batch, np.int32) if lengths else None,
        state,
        *([state] if op == "LSTM" else []),
    ]
    attributes = {"hidden_size": 2, "direction": direction}
    attributes |= {"linear_before_reset": 1} if op == "GRU" else {}
    y, *last = run_op(op, inputs, attributes, 3 if op == "LSTM" else 2, 21)
    assert y.shape == (time, directions, batch, 2)
    for each in last:
        np.testing.assert_array_equal(each, 0 * state if lengths else state)


def test_a_causal_convolution_of_no_step_keeps_its_past() -> None:
    past = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    y, present = run_op("CausalConvWithState", [ones(1, 2, 0), ones(2, 1, 4), None, past], {}, 2)
    assert y.shape == (1, 2, 0)
    np.testing.assert_array_equal(present, past)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_of_no_step_keeps_its_state(rule: str) -> None:
    state = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    decay = ones(1, 0, 4) if "gated" in rule else None
    beta = ones(1, 0, 2) if "delta" in rule else None
    inputs = [ones(1, 0, 4), ones(1, 0, 4), ones(1, 0, 4), state, decay, beta]
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}
    y, after = run_op("LinearAttention", inputs, attributes, 2)
    assert y.shape == (1, 0, 4)
    np.testing.assert_array_equal(after, state)


def test_arg_max_of_an_empty_axis_names_its_node() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[a, b] x) => (int64[c, d] y) { [first] y = ArgMax<axis = 1>(x) }"
    )
    session = onward.InferenceSession(model, providers=["TorchExecutionProvider"])
    with pytest.raises(
        ProviderError,
        match=r"axis 1 of an input of shape \[2, 0\] is empty: it has no largest .*'first'",
    ):
        session.run(None, {"x": ones(2, 0)})
    assert session.run(None, {"x": ones(0, 0)})[0].shape == (0, 1)


def test_window_larger_than_an_empty_image_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the kernel is larger than the padded image of \[0, 5\]"):
        run_op("Conv", [ones(1, 1, 0, 5), ones(2, 1, 3, 3)], {})


def test_autograd_works_through_empty_results() -> None:
    x, w = torch.ones(1, 0, 5, requires_grad=True), torch.full((2, 0, 3), torch.nan)
    zeros_from([1, 2, 3], x, w.requires_grad_()).sum().backward()
    assert x.grad is not None and w.grad is not None
    assert (x.grad.shape, w.grad.shape) == (x.shape, w.shape)
    y = empty_from(torch.full((2,), torch.nan, requires_grad=True), [0, 4])
    assert (y.shape, y.requires_grad) == ((0, 4), True)
    filled = torch.full((2,), torch.nan)
    assert zeros_from([1], filled).tolist() == [0.0]  # whatever the sources hold
