"""Attention is recognised, its masks too; the outputs stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.passes.composites import inline_calls, is_call
from onward.passes.pipelines import BASIC, FOLD_SHAPES, PREPARE, TRAINING
from onward.passes.recognize_composites import recognise_composites
from tests.gradients.structure import structure
from tests.passes.attention_models import SIZE, WRITERS, layer
from tests.passes.test_masks import CASES, Write

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 6, 4
SEEN = np.array([[0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]])  # rows that see nothing among them


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, LENGTH, WIDTH)
    given: dict[str, Any] = {n: rng.normal(size=shape).astype(np.float32) for n in "qkv"}
    return given | {"ids": rng.integers(0, 9, (BATCH, LENGTH)), "seen": SEEN}


def answers(model: ir.Model) -> list[Any]:
    """In torch: ONNX's reference takes no mask that broadcasts under `is_causal`."""
    session = onward.InferenceSession(model.clone(), None, ["TorchExecutionProvider"])
    return session.run(None, feeds())


def masked(write: Write) -> ir.Model:
    """One Attention with a mask."""
    op = OpBuilder()
    q, k, v = (op.input(n, "float32", ("batch", HEADS, "length", WIDTH)) for n in "qkv")
    ids, seen = (op.input(n, "int64", ("batch", "length")) for n in ("ids", "seen"))
    return PREPARE(op.model(y=op.Attention(q, k, v, write(op, ids, seen))))


@pytest.mark.parametrize("name", CASES)
def test_attention_mask_is_simplified_to_its_meaning(name: str) -> None:
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


def test_an_axis_that_is_added_has_size_one() -> None:
    op = OpBuilder()
    ids = op.input("ids", "int64", ("batch", "length"))
    table = op.initializer("table", np.zeros((9, 3), np.float32))
    positions = op.Range(0, op.Squeeze(op.Shape(ids, start=1, end=2), [0]), 1)
    rows = op.Gather(table, op.Unsqueeze(positions, [0]), axis=0)
    x = op.input("x", "float32", ("batch", "length", 3))
    model = op.model(y=op.Add(x, rows))
    for node in model.graph:  # as exporters leave them
        node.outputs[0].shape = None
    model = recognise_composites(PREPARE(model), ["table"])
    (gather,) = (node for node in model.graph if node.op_type == "Gather")
    assert gather.outputs[0].shape is not None and gather.outputs[0].shape[0] == 1


# -- attention that is written out -----------------------------------------------------------------

MEANINGS = {"eager": (1, False), "scaled": (1, False), "chosen": (1, False), "plain": (0, False)}
MEANINGS["padded"] = (0, True)
PARAMETERS = ["wq", "wk", "wv"]


def recognised(model: ir.Model) -> ir.Model:
    return recognise_composites(PREPARE(model.clone()), PARAMETERS)


def calls(model: ir.Model) -> list[ir.Node]:
    return list(filter(is_call, model.graph))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_written_out_attention_becomes_a_call(name: str, groups: int) -> None:
    (call,) = calls(recognised(layer(WRITERS[name], groups=groups)))
    q, k, v, mask, *others = call.inputs
    causal, masked = MEANINGS[name]
    assert call.op_type == "Attention" and others[:3] == [None] * 3
    assert call.attributes["is_causal"].value == causal
    assert call.attributes["scale"].value == pytest.approx(SIZE**-0.5)
    assert (mask is not None) == masked
    if mask is not None:
        assert mask.shape is not None and mask.shape[-2] == 1
    heads = [value.shape[1] for value in (q, k, v)]  # type: ignore[union-attr, index]
    assert heads == [4, 4 // groups, 4 // groups]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_the_inlined_call_is_the_exporters_graph(name: str, groups: int) -> None:
    model = layer(WRITERS[name], groups=groups)
    plain, called = FOLD_SHAPES(PREPARE(model.clone())), recognised(model)
    assert structure(BASIC(inline_calls(called))) == structure(BASIC(plain))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_inlined_gradient_matches_the_gradient_of_the_nodes(name: str, groups: int) -> None:
    model = layer(WRITERS[name], groups=groups)
    plain, called = PREPARE(opened(model)), recognised(opened(model))
    extend(plain, {"y": "dy"}, PARAMETERS, GRADIENTS)
    extend(called, {"y": "dy"}, PARAMETERS, GRADIENTS, composites=True)
    assert [call.op_type for call in calls(called)] == ["Attention", "AttentionGrad"]
    assert structure(TRAINING(inline_calls(called))) == structure(TRAINING(plain))


def opened(model: ir.Model) -> ir.Model:
    """Parameters as inputs, as in a training program."""
    copy = model.clone()
    copy.graph.inputs.extend(copy.graph.initializers[name] for name in PARAMETERS)
    return copy


def test_repeated_heads_of_an_attention_are_shared_again() -> None:
    def standard(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
        value: ir.Value = op.Attention(q, k, v)
        return value

    (node,) = (n for n in recognised(layer(standard, groups=2)).graph if n.op_type == "Attention")
    assert [value.shape[1] for value in node.inputs] == [4, 2, 2]  # type: ignore[union-attr, index]


def dropped(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """With a dropout between softmax and values."""
    scores = op.MatMul(op.Mul(q, np.float32(0.5)), op.Transpose(k, perm=[0, 1, 3, 2]))
    p = op.Dropout(op.Softmax(scores, axis=-1), np.float32(0.1), np.array(True))
    value: ir.Value = op.MatMul(p, v)
    return value


def blind(op: Any, q: Any, k: Any, v: Any, ids: Any, seen: Any) -> ir.Value:
    """A query that sees nothing is NaN here, and would be 0."""
    scores = op.MatMul(op.Mul(q, np.float32(0.5)), op.Transpose(k, perm=[0, 1, 3, 2]))
    hidden = op.Not(op.Cast(op.Unsqueeze(seen, [1, 2]), to=9))
    scores = op.Where(hidden, -np.float32(np.inf), scores)
    value: ir.Value = op.MatMul(op.Softmax(scores, axis=-1), v)
    return value


@pytest.mark.parametrize("writer", [dropped, blind])
def test_uncertain_attention_stays(writer: Any) -> None:
    model = layer(writer)
    plain, tried = FOLD_SHAPES(PREPARE(model.clone())), recognised(model)
    assert not calls(tried)
    assert structure(BASIC(tried)) == structure(BASIC(plain))


@pytest.mark.parametrize("operator", ["Softmax", "Add"])
def test_attention_with_other_readers_stays(operator: str) -> None:
    model = layer(WRITERS["eager"])
    (inner,) = (node for node in model.graph if node.op_type == operator)
    model.graph.outputs.append(inner.outputs[0])
    plain, tried = FOLD_SHAPES(PREPARE(model.clone())), recognised(model)
    assert not calls(tried)
    assert structure(BASIC(tried)) == structure(BASIC(plain))
