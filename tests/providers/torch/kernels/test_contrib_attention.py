"""onnxruntime's attention operators, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from onward.errors import UnsupportedModel
from tests.providers.torch.one_node import Array, run_op
from tests.providers.torch.ort_node import agrees_with_ort, ort_op

MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(13)
BATCH, LENGTH, HEADS, SIZE, PAST = 2, 4, 2, 4, 3
HIDDEN = HEADS * SIZE


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def whole(values: Any) -> Array:
    return np.array(values, np.int32)


def bits(*shape: int) -> Array:
    """A mask that shows each query a key: else scores are about -10,000, and rounding decides."""
    mask = RANDOM.integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask


def agrees(op: str, inputs: list[Array | None], outputs: int = 1, **attributes: Any) -> None:
    agrees_with_ort(op, inputs, attributes, outputs, domain=MICROSOFT)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [[4], [[1, 2, 3], [5, 6, 7]]])
def test_rotary_embedding_takes_ids_or_an_offset(interleaved: int, positions: Any) -> None:
    tables = [np.array(positions, np.int64), numbers(16, 4), numbers(16, 4)]
    agrees("RotaryEmbedding", [numbers(2, 3, 16), *tables], interleaved=interleaved)
    agrees("RotaryEmbedding", [numbers(2, 2, 3, 8), *tables], interleaved=interleaved)
    part = {"interleaved": interleaved, "rotary_embedding_dim": 8, "num_heads": 2}
    agrees("RotaryEmbedding", [numbers(2, 3, 24), *tables], **part)


ATTENTION_MASKS: dict[str, Array | None] = {
    "none": None,
    "ends": whole([2, 4]),
    "ends and starts": whole([4, 4, 1, 2]),
    "a row": whole([[1, 1, 0, 0], [1, 1, 1, 1]]),
    "an empty row": whole([[0, 0, 0, 0], [1, 1, 1, 1]]),
    "a matrix": bits(BATCH, LENGTH, LENGTH),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ATTENTION_MASKS.values(), ids=ATTENTION_MASKS.keys())
@pytest.mark.parametrize("bias", [None, numbers(1, 1, LENGTH, LENGTH)])
def test_attention_with_every_mask(mask: Array | None, causal: int, bias: Array | None) -> None:
    inputs = [numbers(BATCH, LENGTH, HIDDEN), numbers(HIDDEN, 3 * HIDDEN), numbers(3 * HIDDEN)]
    attributes = {"num_heads": HEADS, "unidirectional": causal, "mask_filter_value": -50.0}
    agrees("Attention", [*inputs, mask, None, bias], **attributes)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_has_a_past_and_values_of_another_size(causal: int) -> None:
    x, w, b = numbers(BATCH, LENGTH, HIDDEN), numbers(HIDDEN, 3 * HIDDEN), numbers(3 * HIDDEN)
    past, mask = numbers(2, BATCH, HEADS, PAST, SIZE), bits(BATCH, LENGTH + PAST)
    attributes = {"num_heads": HEADS, "unidirectional": causal}
    agrees("Attention", [x, w, b, None, past], 2, **attributes)
    agrees("Attention", [x, w, b, mask, past], 2, **attributes)
    attributes["qkv_hidden_sizes"] = [8, 8, 12]
    agrees("Attention", [x, numbers(HIDDEN, 28), numbers(28)], **attributes)


KEYS = 6
PADDING: dict[str, Array | None] = {
    "none": None,
    "ends": whole([3, 6]),
    "a row": bits(BATCH, KEYS),
    "a matrix": bits(BATCH, LENGTH, KEYS),
}


@pytest.mark.parametrize("mask", PADDING.values(), ids=PADDING.keys())
@pytest.mark.parametrize("added", [None, (1, 1), (BATCH, 1), (1, HEADS), (BATCH, HEADS)])
def test_multi_head_attention_with_every_mask(mask: Array | None, added: Any) -> None:
    bias = None if added is None else numbers(*added, LENGTH, KEYS)
    inputs = [
        numbers(BATCH, LENGTH, HIDDEN),
        numbers(BATCH, KEYS, HIDDEN),
        numbers(BATCH, KEYS, 12),
        numbers(2 * HIDDEN + 12),
        mask,
        bias,
    ]
    agrees("MultiHeadAttention", inputs, num_heads=HEADS, scale=0.4)


@pytest.mark.parametrize("bias", [None, numbers(3 * HIDDEN)])
def test_multi_head_attention_takes_keys_from_a_cache(bias: Array | None) -> None:
    cached = [numbers(BATCH, HEADS, KEYS, SIZE) for _ in range(2)]
    inputs = [numbers(BATCH, LENGTH, HIDDEN), *cached, bias]
    agrees("MultiHeadAttention", inputs, num_heads=HEADS)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("length", [1, LENGTH])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_with_a_past(causal: int, length: int, masked: bool) -> None:
    total = length + PAST
    inputs = [
        *[numbers(BATCH, length, HIDDEN) for _ in range(3)],
        numbers(3 * HIDDEN),
        bits(BATCH, total) if masked else None,
        numbers(BATCH, HEADS, length, total) if masked else None,
        *[numbers(BATCH, HEADS, PAST, SIZE) for _ in range(2)],
    ]
    agrees("MultiHeadAttention", inputs, 3, num_heads=HEADS, unidirectional=causal)


@pytest.mark.parametrize("bias", [None, numbers(3 * HIDDEN)])
def test_packed_projections_are_the_same_attention(bias: Array | None) -> None:
    q, k, v = (numbers(BATCH, LENGTH, HIDDEN) for _ in range(3))
    heads = [value.reshape(BATCH, LENGTH, HEADS, SIZE) for value in (q, k, v)]
    attributes = {"num_heads": HEADS}
    (wanted,) = run_op("MultiHeadAttention", [q, k, v, bias], attributes, domain=MICROSOFT)
    together: list[Array | None] = [np.stack(heads, 3), None, None, bias]
    (y,) = run_op("MultiHeadAttention", together, attributes, domain=MICROSOFT)
    assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    pair: list[Array | None] = [q, np.stack(heads[1:], 3), None, bias]
    (y,) = run_op("MultiHeadAttention", pair, attributes, domain=MICROSOFT)
    assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


# -- GroupQueryAttention -----------------------------------------------------------------------

Q_HEADS, KV_HEADS, HEAD = 4, 2, 16
TABLES = [numbers(32, HEAD // 2), numbers(32, HEAD // 2)]

# (batch, new tokens, room in the cache, tokens of each sequence after the step)
STEPS: dict[str, tuple[int, int, int, list[int]]] = {
    "a first step": (1, 5, 0, [5]),
    "a first step in a buffer": (1, 5, 16, [5]),
    "a padded first step": (2, 5, 16, [3, 5]),
    "one more token": (1, 1, 6, [7]),
    "one more token for each": (2, 1, 6, [4, 7]),
    "one more token in a buffer": (2, 1, 16, [4, 7]),
    "more tokens": (1, 3, 6, [9]),
    "more tokens in a buffer": (1, 3, 16, [9]),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": 0.2},
    "rotary": {"do_rotary": 1},
    "rotary, interleaved": {"do_rotary": 1, "rotary_interleaved": 1},
    "a window": {"local_window_size": 2},
    "softcap": {"softcap": 2.0},
    "smooth": {"smooth_softmax": 1},
    "not causal": {"causal": 0},
}


def grouped(step: str, packed: bool = False) -> tuple[list[Array | None], list[int]]:
    """Inputs of a step, and the tokens of each sequence that are real."""
    batch, new, room, lengths = STEPS[step]
    if packed:
        projections = [numbers(batch, new, (Q_HEADS + 2 * KV_HEADS) * HEAD), None, None]
    else:
        heads = (Q_HEADS, KV_HEADS, KV_HEADS)
        projections = [numbers(batch, new, n * HEAD) for n in heads]
    caches = [numbers(batch, KV_HEADS, room, HEAD) for _ in range(2)]
    ends = [whole([length - 1 for length in lengths]), whole(max(lengths))]
    return [*projections, *caches, *ends], lengths


def same_steps(inputs: list[Array | None], lengths: list[int], attributes: dict[str, Any]) -> None:
    """What is padding, onnxruntime leaves as it finds it."""
    attributes = {"num_heads": Q_HEADS, "kv_num_heads": KV_HEADS, **attributes}
    options = (attributes, 3)
    y, *caches = run_op("GroupQueryAttention", inputs, *options, domain=MICROSOFT)
    wanted, *kept = ort_op("GroupQueryAttention", inputs, *options, domain=MICROSOFT)
    first = y.shape[1] == max(lengths)
    for row, length in enumerate(lengths):
        real = length if first else y.shape[1]
        assert_allclose(y[row, :real], wanted[row, :real], rtol=1e-4, atol=1e-5)
        for cache, their in zip(caches, kept, strict=True):
            assert cache.shape == their.shape
            assert_allclose(cache[row, :, :length], their[row, :, :length], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attributes", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("step", STEPS)
def test_grouped_queries_attend_to_a_cache(step: str, attributes: dict[str, Any]) -> None:
    inputs, lengths = grouped(step)
    same_steps([*inputs, *TABLES] if "do_rotary" in attributes else inputs, lengths, attributes)


@pytest.mark.parametrize("step", STEPS)
def test_grouped_queries_may_come_packed(step: str) -> None:
    inputs, lengths = grouped(step, packed=True)
    same_steps([*inputs, *TABLES], lengths, {"do_rotary": 1})


@pytest.mark.parametrize("step", ["a first step in a buffer", "one more token in a buffer"])
def test_grouped_queries_take_positions_a_bias_and_a_sink(step: str) -> None:
    inputs, lengths = grouped(step)
    batch, new, *_ = STEPS[step]
    # at a first step onnxruntime reads one id and counts on from it
    ids = np.arange(new) + RANDOM.integers(0, 20, (batch, 1))
    same_steps([*inputs, *TABLES, ids], lengths, {"do_rotary": 1})
    nothing = [None, None, None]
    bias = numbers(batch, 1, new, max(lengths))
    same_steps([*inputs, *nothing, bias], lengths, {})
    same_steps([*inputs, *nothing, None, numbers(Q_HEADS)], lengths, {})


def test_grouped_queries_are_normalized_before_rotation() -> None:
    inputs, _ = grouped("a first step")
    q, k = inputs[:2]
    assert q is not None and k is not None
    weights = [numbers(HEAD), numbers(HEAD)]
    attributes = {"num_heads": Q_HEADS, "kv_num_heads": KV_HEADS}
    options = (attributes, 1)
    (y,) = run_op(
        "GroupQueryAttention", [*inputs, *[None] * 7, *weights], *options, domain=MICROSOFT
    )

    def normal(x: Array, weight: Array) -> Array:
        heads = x.reshape(*x.shape[:2], -1, HEAD)
        rms = np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6)
        return (heads / rms * weight).reshape(x.shape)

    inputs[:2] = normal(q, weights[0]), normal(k, weights[1])
    (wanted,) = run_op("GroupQueryAttention", inputs, *options, domain=MICROSOFT)
    assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_a_quantized_cache_is_refused_by_name() -> None:
    inputs, _ = grouped("a first step")
    scales = [*[None] * 5, np.ones(1, np.float32), np.ones(1, np.float32)]
    attributes = {"num_heads": Q_HEADS, "kv_num_heads": KV_HEADS}
    with pytest.raises(UnsupportedModel, match="GroupQueryAttention with a quantized"):
        run_op("GroupQueryAttention", [*inputs, *scales], attributes, domain=MICROSOFT)
