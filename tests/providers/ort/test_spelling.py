"""What onnxruntime refuses as it is written runs in another spelling, with the same meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onward
from onward.providers.ort.provider import serialize
from onward.providers.ort.session import create


def attention(q: Any, mask: Any) -> onward.OpBuilder:
    op = onward.OpBuilder()
    heads = {} if len(q) == 4 else {"q_num_heads": 2, "kv_num_heads": 2}
    q, k = (
        op.input("q", "float32", q),
        op.input("k", "float32", (2, 2, 5, 4) if len(q) == 4 else (2, 5, 8)),
    )
    return op.model(y=op.Attention(q, k, k, op.input("mask", "float32", mask), **heads))


@pytest.mark.parametrize("q", [(2, 2, 3, 4), (2, 3, 8)])
@pytest.mark.parametrize("mask", [(1, 5), (2, 1, 1, 5)])
@pytest.mark.parametrize("open_time", [False, True])
def test_an_attention_mask_may_broadcast_over_the_queries(
    q: Any, mask: Any, open_time: bool
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"q": q, "k": (2, 2, 5, 4) if len(q) == 4 else (2, 5, 8), "mask": mask}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    declared = tuple("time" if open_time and size == 3 else size for size in q)
    (expected,) = onward.InferenceSession(
        attention(declared, mask), providers=["ReferenceExecutionProvider"]
    ).run(None, feeds)
    data, weights = serialize(attention(declared, mask))
    session = create(data, onward.SessionOptions(), [("CPUExecutionProvider", {})], weights)
    (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result, expected, atol=1e-5)
