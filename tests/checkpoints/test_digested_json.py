"""JSON files with their own SHA-256: every change is detected, the order of keys may be kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.checkpoints.digested_json import decode_digested, encode_digested

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.text().filter(lambda key: key != "sha256"), VALUES | st.lists(VALUES, max_size=2)
    ),
    st.booleans(),
)
def test_encode_then_decode_is_identity(body: dict[str, Any], ordered: bool) -> None:
    found = decode_digested(encode_digested(body, ordered=ordered), ordered=ordered)
    assert found == body
    if ordered:
        assert list(found) == list(body)


def test_every_flipped_bit_is_detected() -> None:
    data = encode_digested({"b": [1, 2.5], "a": {"x": "y"}}, ordered=True)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"not a manifest|does not match"):
            decode_digested(bytes(changed), ordered=True)
