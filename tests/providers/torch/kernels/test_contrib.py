"""onnxruntime's operators, compared with onnxruntime or with their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

from onward.providers.ort.kernels import kernel_types
from tests.providers.torch.one_node import Array, run_op
from tests.providers.torch.ort_node import agrees_with_ort, ort_op

MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(11)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def agrees(
    op: str,
    inputs: list[Array | None],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    **options: Any,
) -> None:
    agrees_with_ort(op, inputs, attributes, outputs, **{"domain": MICROSOFT, **options})


X = numbers(2, 3, 8)


@pytest.mark.parametrize(
    "op, more, attributes",
    [
        ("Gelu", [], {}),
        ("BiasGelu", [numbers(8)], {}),
        ("FastGelu", [], {}),
        ("FastGelu", [numbers(8)], {}),
        ("QuickGelu", [], {}),
        ("QuickGelu", [], {"alpha": 0.7}),
    ],
)
def test_gelus_agree(op: str, more: list[Array | None], attributes: dict[str, Any]) -> None:
    agrees(op, [X, *more], attributes)


@pytest.mark.parametrize("bias", [None, numbers(8)])
@pytest.mark.parametrize("beta", [None, numbers(8)])
@pytest.mark.parametrize("skip", [numbers(2, 3, 8), numbers(1, 3, 8), numbers(3, 8)])
def test_skip_layer_normalization_broadcasts_its_skip(
    skip: Array, beta: Array | None, bias: Array | None
) -> None:
    agrees("SkipLayerNormalization", [X, skip, numbers(8), beta, bias], {"epsilon": 1e-5})


@pytest.mark.parametrize("bias", [None, numbers(8)])
def test_skip_normalizations_return_their_sum(bias: Array | None) -> None:
    gamma, skip = numbers(8), numbers(2, 3, 8)
    agrees("SkipLayerNormalization", [X, skip, gamma, numbers(8), bias], {}, outputs=4)
    agrees("SkipSimplifiedLayerNormalization", [X, skip, gamma, bias], {"epsilon": 1e-5})
    agrees("SkipSimplifiedLayerNormalization", [X[0], skip[0], gamma, bias], {"epsilon": 1e-5})
    inputs = [X, skip, gamma, bias]
    y, _, inverse, s = run_op(
        "SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-5}, 4, domain=MICROSOFT
    )
    total = X + skip + (0 if bias is None else bias)
    assert_allclose(s, total, rtol=1e-5)
    assert_allclose(y, total * inverse * gamma, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis, shape", [(-1, (8,)), (2, (8,)), (1, (3, 8)), (1, (8,))])
def test_simplified_layer_normalization_is_known_in_both_domains(
    axis: int, shape: tuple[int, ...]
) -> None:
    inputs, attributes = [X, numbers(*shape)], {"axis": axis, "epsilon": 1e-6}
    agrees("SimplifiedLayerNormalization", inputs, attributes, 2, domain="")
    (y,) = run_op("SimplifiedLayerNormalization", inputs, attributes, domain=MICROSOFT)
    (wanted,) = run_op("SimplifiedLayerNormalization", inputs, attributes)
    assert_allclose(y, wanted)


@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 0], [1, 1, 1]], np.int32)])
def test_embeddings_are_summed_normalized_and_counted(mask: Array | None) -> None:
    ids = np.array([[1, 2, 3], [4, 0, 2]], np.int32)
    segments = np.array([[0, 0, 1], [1, 0, 0]], np.int32)
    words, places, kinds = numbers(6, 8), numbers(5, 8), numbers(2, 8)
    gamma, beta = numbers(8), numbers(8)
    inputs = [ids, segments, words, places, kinds, gamma, beta, mask]
    agrees("EmbedLayerNormalization", inputs, {}, 3, constants=(2, 3, 4, 5, 6))
    at = np.array([[2, 1, 0]], np.int32)
    inputs = [ids, None, words, places, None, gamma, beta, mask, at]
    agrees("EmbedLayerNormalization", inputs, {}, 2, constants=(2, 3, 5, 6))


FLAGS = [(a, b) for a in (0, 1) for b in (0, 1)]


@pytest.mark.parametrize("batch_a, batch_b", FLAGS)
@pytest.mark.parametrize("trans_a, trans_b", FLAGS)
def test_fused_matmul_transposes_its_operands(
    trans_a: int, trans_b: int, batch_a: int, batch_b: int
) -> None:
    a, b = numbers(2, 3, 4, 5), numbers(2, 3, 5, 6)
    a, b = a.swapaxes(-1, -2) if trans_a else a, b.swapaxes(-1, -2) if trans_b else b
    a, b = np.moveaxis(a, -2, 0) if batch_a else a, np.moveaxis(b, -2, 0) if batch_b else b
    attributes = {
        "transA": trans_a,
        "transB": trans_b,
        "transBatchA": batch_a,
        "transBatchB": batch_b,
        "alpha": 0.5,
    }
    agrees("FusedMatMul", [np.ascontiguousarray(a), np.ascontiguousarray(b)], attributes)


@pytest.mark.parametrize("a, b", [((5,), (5, 3)), ((3, 5), (5,)), ((4, 5), (2, 3, 5, 6))])
def test_fused_matmul_broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    agrees("FusedMatMul", [numbers(*a), numbers(*b)])


ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("Relu", []),
    ("Tanh", []),
    ("Sigmoid", []),
    ("LeakyRelu", [0.2]),
    ("HardSigmoid", [0.3, 0.4]),
    ("Clip", [-0.2, 0.3]),
]


@pytest.mark.parametrize("name, params", ACTIVATIONS)
def test_fused_nodes_carry_an_activation(name: str, params: list[float]) -> None:
    if name != "Clip":
        keys = ["activation_alpha", "activation_beta"][: len(params)]
        attributes = {"activation": name, "alpha": 0.5, "beta": 2.0, **dict(zip(keys, params))}
        agrees("FusedGemm", [numbers(3, 4), numbers(4, 5), numbers(5)], attributes)
    attributes = {"activation": name, "pads": [1, 1, 1, 1]}
    attributes |= {"activation_params": params} if params else {}
    agrees("FusedConv", [numbers(1, 3, 6, 6), numbers(4, 3, 3, 3), numbers(4)], attributes)


def test_a_convolution_adds_a_residual_in_either_layout() -> None:
    x, w, b, z = numbers(1, 3, 6, 6), numbers(4, 3, 3, 3), numbers(4), numbers(1, 4, 6, 6)
    attributes = {"activation": "Relu", "pads": [1, 1, 1, 1]}
    agrees("FusedConv", [x, w, b, z], attributes)
    [wanted] = ort_op("FusedConv", [x, w, b, z], attributes, domain=MICROSOFT)
    last = [np.ascontiguousarray(np.moveaxis(value, 1, -1)) for value in (x, z)]
    inputs = [last[0], w, b, last[1]]
    [y] = run_op("NhwcFusedConv", inputs, attributes, domain=MICROSOFT)
    assert_allclose(np.moveaxis(y, -1, 1), wanted, rtol=1e-4, atol=1e-5)
    if (MICROSOFT, "NhwcFusedConv") in kernel_types("CPUExecutionProvider"):  # only on ARM
        agrees("NhwcFusedConv", inputs, attributes)


# -- operators that stock onnxruntime has only on a GPU -----------------------------------------


def gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def run(op: str, inputs: list[Array | None], **attributes: Any) -> Any:
    return run_op(op, inputs, attributes, outputs=1, domain=MICROSOFT)[0]


def test_bias_split_gelu_gates_one_half_by_the_other() -> None:
    left, right = np.split(X + 0.5, 2, -1)
    y = run("BiasSplitGelu", [X, np.full(8, 0.5, np.float32)])
    assert_allclose(y, left * gelu(right), rtol=1e-4, atol=1e-6)


def test_bias_add_adds_a_bias_and_a_residual() -> None:
    bias, skip = numbers(8), numbers(2, 3, 8)
    assert_allclose(run("BiasAdd", [X, bias, skip]), X + bias + skip, rtol=1e-5)


@pytest.mark.parametrize("axis, bias", [(3, (2, 1, 1, 5)), (2, (1, 3, 4, 5))])
def test_bias_softmax_goes_over_all_axes_from_its_own_on(axis: int, bias: tuple[int, ...]) -> None:
    x, b = numbers(2, 3, 4, 5), numbers(*bias)
    y = run("BiasSoftmax", [x, b], axis=axis, is_inner_broadcast=1)
    e = np.exp(x + b)
    assert_allclose(y, e / e.sum(tuple(range(axis, 4)), keepdims=True), rtol=1e-4)


def test_gemm_fast_gelu_is_a_product_and_its_gelu() -> None:
    x, w, b = numbers(2, 3, 4), numbers(4, 5), numbers(5)
    wanted = F.gelu(torch.tensor(x @ w + b), approximate="tanh")
    assert_allclose(run("GemmFastGelu", [x, w, b]), wanted, rtol=1e-4, atol=1e-6)


def test_fused_matmul_activation_may_be_a_softmax() -> None:
    a, b = numbers(3, 4), numbers(4, 5)
    e = np.exp(a @ b)
    y = run("FusedMatMulActivation", [a, b], activation="Softmax", activation_axis=0)
    assert_allclose(y, e / e.sum(0), rtol=1e-4)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("flat", [False, True])
def test_group_norm_adds_its_skip_in_either_layout(last: int, flat: bool) -> None:
    x, skip, bias = numbers(2, 6, 4, 4), numbers(2, 6, 1, 1), numbers(6)
    gamma, beta = numbers(6), numbers(6)
    s = x + skip + bias[:, None, None]
    wanted = F.silu(F.group_norm(*map(torch.tensor, (s,)), 2, *map(torch.tensor, (gamma, beta))))
    added = skip[:, :, 0, 0] if flat else skip
    if last:
        x, s, wanted = (np.moveaxis(value, 1, -1) for value in (x, s, wanted.numpy()))
        added = added if flat else np.moveaxis(added, 1, -1)
    attributes = {"activation": 1, "groups": 2, "channels_last": last}
    y, total = run_op(
        "SkipGroupNorm", [x, gamma, beta, added, bias], attributes, 2, domain=MICROSOFT
    )
    assert_allclose(total, s, rtol=1e-5)
    assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    assert_allclose(run("GroupNorm", [s, gamma, beta], **attributes), y, rtol=1e-4, atol=1e-5)
