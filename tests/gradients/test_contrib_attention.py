"""Inputs and attributes of com.microsoft's attention operators that have no gradient rule."""

from __future__ import annotations

import onnx.parser
import pytest

import onward
from onward.errors import MissingGradient

QKV = "float[2,5,8] q, float[2,5,8] k, float[2,5,8] v"
REFUSED = {
    "rotary embedding of unknown size": (
        "float[2,4,n] q, int64[2,4] places, float[7,m] cos, float[7,m] sin",
        "RotaryEmbedding(q, places, cos, sin)",
        r"the number of heads is unknown: set num_heads",
    ),
    "multi-head attention with a cache in place": (
        f"{QKV}, int32[1] length, float[2,2,5,4] old_k, float[2,2,5,4] old_v",
        "MultiHeadAttention<num_heads = 2>(q, k, v, , , , old_k, old_v, length)",
        "inputs 8 and 9, a cache that is updated in place, are not supported",
    ),
    "attention with rotary positions": (
        "float[2,5,3] q, float[3,24] w",
        "Attention<num_heads = 2, do_rotary = 1>(q, w)",
        "do_rotary is not supported: apply RotaryEmbedding before the node",
    ),
    "attention with a cache in place": (
        "float[2,5,3] q, float[3,24] w, float[2,2,2,5,4] old, int32[1] length",
        "Attention<num_heads = 2>(q, w, , , old, , length)",
        "input 6, a cache that is updated in place, is not supported",
    ),
    "group attention with a quantized cache": (
        f"{QKV}, int32[2] lengths, int32 total, float[1] scale",
        "GroupQueryAttention<num_heads = 2, kv_num_heads = 2>"
        "(q, k, v, , , lengths, total, , , , , , scale, scale)",
        r"a quantized cache \(inputs 12 and 13\) is not supported",
    ),
    "group attention with a sliding cache": (
        f"{QKV}, int32[2] lengths, int32 total",
        "GroupQueryAttention<num_heads = 2, kv_num_heads = 2, sliding_window_cache = 1>"
        "(q, k, v, , , lengths, total)",
        "sliding_window_cache is not supported",
    ),
}


@pytest.mark.parametrize(("inputs", "call", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_forms_are_refused(inputs: str, call: str, words: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> '
        f"g ({inputs}) => (float[2, 5, 8] y) {{ y = com.microsoft.{call} }}"
    )
    with pytest.raises(MissingGradient, match=words):
        onward.gradient(model, {"y": "dy"}, "q")
