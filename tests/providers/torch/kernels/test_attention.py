"""Attention, FlexAttention, RotaryEmbedding and LinearAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.providers.torch.one_node import Array, run_model, run_op
from tests.providers.torch.reference import reference_op

BATCH, QUERIES, KEYS, SIZE = 2, 3, 5, 4
RANDOM = np.random.default_rng(7)
INF = float("inf")


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def same(op: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int = 1) -> None:
    expected = reference_op(op, inputs, attributes, outputs)
    for y, wanted in zip(run_op(op, inputs, attributes, outputs), expected, strict=True):
        assert y.dtype == wanted.dtype
        assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def qkv(heads: int = 4, kv_heads: int = 4, value_size: int = SIZE) -> list[Array | None]:
    return [
        numbers(BATCH, heads, QUERIES, SIZE),
        numbers(BATCH, kv_heads, KEYS, SIZE),
        numbers(BATCH, kv_heads, KEYS, value_size),
    ]


MASKS: dict[str, Array | None] = {
    "no mask": None,
    "a vector": numbers(KEYS),
    "a matrix": numbers(QUERIES, KEYS),
    "a mask for each head": numbers(4, QUERIES, KEYS),
    "a mask for each batch": numbers(BATCH, 1, QUERIES, KEYS),
    "a short mask": numbers(QUERIES, KEYS - 2),
    "booleans": RANDOM.random((QUERIES, KEYS)) > 0.3,
    "short booleans": RANDOM.random((BATCH, 1, 1, KEYS - 1)) > 0.3,
    "nothing to see": np.zeros((QUERIES, KEYS), bool),
    "nothing to see, added": np.full((QUERIES, KEYS), -INF, np.float32),
}
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"is_causal": 1},
    {"scale": 0.3},
    {"softcap": 1.5},
    {"left_window_size": 1},
    {"right_window_size": 1, "left_window_size": 0},
    {"left_window_size": 1, "is_causal": 1},
    {"softmax_precision": 11},
]


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_attention_masks_match_the_reference(
    mask: Array | None, attributes: dict[str, Any]
) -> None:
    inputs = qkv()
    (y,) = run_op("Attention", [*inputs, mask], attributes)
    if mask is not None:  # the reference reads the number of queries off its mask
        mask = mask + np.zeros((QUERIES, mask.shape[-1]), mask.dtype)
    (wanted,) = reference_op("Attention", [*inputs, mask], attributes)
    assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("value_size", [SIZE, 7])
@pytest.mark.parametrize("queries", [QUERIES, 1])
@pytest.mark.parametrize("mask", [None, numbers(BATCH, 1, 1, KEYS), numbers(4, 1, KEYS)])
def test_query_heads_share_key_heads(
    kv_heads: int, value_size: int, queries: int, mask: Array | None
) -> None:
    q, k, v = qkv(4, kv_heads, value_size)
    assert q is not None
    same("Attention", [q[:, :, :queries], k, v, mask], {})


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_attention_with_a_past_returns_its_scores(
    new: int, past: int, causal: int, mode: int
) -> None:
    inputs = [numbers(BATCH, new, 2 * SIZE) for _ in range(3)]
    cache = [numbers(BATCH, 2, past, SIZE) for _ in range(2)]
    attributes = {
        "is_causal": causal,
        "q_num_heads": 2,
        "kv_num_heads": 2,
        "qk_matmul_output_mode": mode,
    }
    same("Attention", [*inputs, None, *cache], attributes, outputs=3)
    same("Attention", [*inputs, None, *cache], attributes, outputs=4)


def test_raw_scores_have_no_softcap() -> None:
    # ONNX's reference gives the capped ones here; its function body and its words do not.
    q, k, v = qkv()
    *_, raw = run_op("Attention", [q, k, v], {"softcap": 0.5, "qk_matmul_output_mode": 0}, 4)
    assert q is not None and k is not None
    assert_allclose(raw, q @ k.swapaxes(-1, -2) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lengths", [[5, 3], [2, 1], [0, 5]])
@pytest.mark.parametrize("window", [{}, {"left_window_size": 1}])
def test_attention_ignores_padding_of_the_cache(
    causal: int, lengths: list[int], window: dict[str, int]
) -> None:
    filled = np.array(lengths, np.int64)
    same("Attention", [*qkv(), None, None, None, filled], {"is_causal": causal, **window})


@pytest.mark.parametrize("queries, keys", [(0, 3), (3, 0), (0, 0)])
def test_fully_masked_attention_is_zero(queries: int, keys: int) -> None:
    inputs: list[Array | None] = [
        numbers(1, 2, queries, 4),
        numbers(1, 2, keys, 4),
        numbers(1, 2, keys, 4),
    ]
    (y,) = run_op("Attention", inputs)
    assert_array_equal(y, np.zeros((1, 2, queries, 4), np.float32))


@pytest.mark.parametrize("dtype, error", [(np.float16, 5e-3), (np.float64, 1e-6)])
def test_attention_keeps_its_type(dtype: Any, error: float) -> None:
    inputs = [*qkv(), numbers(QUERIES, KEYS)]
    (y,) = run_op("Attention", [None if x is None else x.astype(dtype) for x in inputs])
    (wanted,) = reference_op("Attention", inputs)
    assert y.dtype == dtype
    assert_allclose(y, wanted, atol=error)


def flex_model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 23, "ai.onnx.preview": 1]>
        flex (float[b,4,l,d] q, float[b,2,s,d] k, float[b,2,s,d] v, float[1] t)
            => (float[b,4,l,d] y) {{
            y = ai.onnx.preview.FlexAttention <scale = 0.5, {body} = inner
                (float[b,4,l,s] x) => (float[b,4,l,s] z) {{ z = Mul (x, t) }}> (q, k, v)
        }}""")


@pytest.mark.parametrize("body", ["score_mod", "prob_mod"])
def test_flex_attention_subgraph_reads_outer_values(body: str) -> None:
    q, k, v = qkv(4, 2)
    assert q is not None and k is not None and v is not None
    (y,) = run_model(flex_model(body), [q, k, v, np.array([3], np.float32)])
    k, v = k.repeat(2, axis=1), v.repeat(2, axis=1)
    scores = 0.5 * q @ k.swapaxes(-1, -2) * (3 if body == "score_mod" else 1)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_allclose(y, (3 * p if body == "prob_mod" else p) @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [0, 4])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_rotary_embedding_rotates_pairs(
    interleaved: int, rotary: int, positions: bool, flat: bool
) -> None:
    half = (rotary or 6) // 2
    x = numbers(BATCH, 3, 2 * 6) if flat else numbers(BATCH, 2, 3, 6)
    table = (9, half) if positions else (BATCH, 3, half)
    ids = RANDOM.integers(0, 9, (BATCH, 3)) if positions else None
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotary}
    if flat:
        attributes["num_heads"] = 2
    same("RotaryEmbedding", [x, numbers(*table), numbers(*table), ids], attributes)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("length", [1, 7, 37])
@pytest.mark.parametrize("decays", ["a head", "a key"])
@pytest.mark.parametrize("state", [False, True])
def test_linear_attention_in_chunks_equals_its_steps(
    rule: str, length: int, decays: str, state: bool
) -> None:
    heads, size, value_size = 2, 3, 5
    k = numbers(BATCH, length, heads, size)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay = -10 * RANDOM.random((BATCH, length, heads if decays == "a head" else heads * size))
    inputs = [
        numbers(BATCH, length, 4 * size),
        k.reshape(BATCH, length, -1),
        numbers(BATCH, length, heads * value_size),
        numbers(BATCH, heads, size, value_size) if state else None,
        decay.astype(np.float32) if "gated" in rule else None,
        RANDOM.random((BATCH, length, heads)).astype(np.float32) if "delta" in rule else None,
    ]
    attributes = {"update_rule": rule, "q_num_heads": 4, "kv_num_heads": heads, "chunk_size": 8}
    same("LinearAttention", inputs, attributes, outputs=2)
