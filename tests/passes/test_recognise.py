"""Attention is recognised, its masks too; the outputs stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE
from onward.passes.recognise import recognise_composites
from tests.passes.test_masks import CASES, Write

BATCH, HEADS, LENGTH, SIZE = 2, 2, 6, 4
SEEN = np.array([[0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]])  # rows that see nothing among them


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, LENGTH, SIZE)
    given: dict[str, Any] = {n: rng.normal(size=shape).astype(np.float32) for n in "qkv"}
    return given | {"ids": rng.integers(0, 9, (BATCH, LENGTH)), "seen": SEEN}


def answers(model: ir.Model) -> list[Any]:
    """In torch: ONNX's reference takes no mask that broadcasts under `is_causal`."""
    session = onward.InferenceSession(model.clone(), None, ["TorchExecutionProvider"])
    return session.run(None, feeds())


def masked(write: Write) -> ir.Model:
    """One Attention with a mask."""
    op = OpBuilder()
    q, k, v = (op.input(n, "float32", ("batch", HEADS, "length", SIZE)) for n in "qkv")
    ids, seen = (op.input(n, "int64", ("batch", "length")) for n in ("ids", "seen"))
    return PREPARE(op.model(y=op.Attention(q, k, v, write(op, ids, seen))))


@pytest.mark.parametrize("name", CASES)
def test_a_mask_of_attention_becomes_what_it_means(name: str) -> None:
    write, meaning = CASES[name]
    model = masked(write)
    (before,) = answers(model)
    (node,) = (n for n in recognise_composites(model).graph if n.op_type == "Attention")
    causal, mask = node.attributes["is_causal"].value, [*node.inputs, None][3]
    assert causal == (meaning is not None and meaning.causal)
    assert (mask is None) == (meaning is not None and not meaning.padded)
    if meaning is not None and meaning.padded:
        assert mask is not None and mask.shape is not None and mask.shape[-2] == 1
    (after,) = answers(model)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
