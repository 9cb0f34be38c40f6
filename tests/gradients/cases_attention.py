"""Cases of rules/attention.py, rotary.py, linear_attention.py and flex_attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, between, integers, normal
from tests.gradients.cases_control import body

_OPTIONS = ("ort", "autograd", "dynamic", "differences", "fixed", "tolerance", "wrt")


def _options(rest: dict[str, Any]) -> dict[str, Any]:
    return {name: rest.pop(name) for name in _OPTIONS if name in rest}


def _typed(op: Any, operator: str, inputs: Any, shapes: Any, attributes: Any) -> Any:
    """A node that ONNX's inference refuses: its schema knows no float64, the engines do."""
    given = list(inputs)
    node = ir.node(operator, given, attributes, num_outputs=len(shapes))
    for output, shape in zip(node.outputs, shapes):
        output.name, output.type, output.shape = op.name(operator), given[0].type, ir.Shape(shape)
    op.graph.append(node)
    return node.outputs


# -- Attention -------------------------------------------------------------------------------

_ORDER = ("q", "k", "v", "mask", "past_k", "past_v", "filled")


def _attention(note: str, feeds: dict[str, Any], outputs: int = 1, **rest: Any) -> Case:
    options, returned = _options(rest), rest.pop("returned", None)

    def build(op: Any, **inputs: Any) -> Any:
        given = [inputs.get(name) for name in _ORDER]
        made = op.Attention(*given, outputs=outputs, **rest)
        return made if returned is None else tuple(made[i] for i in returned)

    return Case("Attention", build, feeds, note, **options)


def _qkv(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...] | None = None) -> Any:
    return {"q": normal(*q), "k": normal(*k, seed=1), "v": normal(*(v or k), seed=2)}


_FOUR = _qkv((2, 3, 4, 5), (2, 3, 6, 5))
_THREE = _qkv((2, 4, 12), (2, 5, 6), (2, 5, 4))
_PAST = {"past_k": normal(2, 3, 2, 5, seed=3), "past_v": normal(2, 3, 2, 5, seed=4)}
_HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
_KEPT = integers(0, 2, 4, 6).astype(bool)
_KEPT[:, 0] = True
_BLIND = _KEPT.copy()
_BLIND[1] = False
_INF = normal(4, 6)
_INF[2] = -np.inf  # a query that sees nothing
_INF[0, 3] = -np.inf
_LENGTHS = {"filled": np.array([6, 3])}

# stock onnxruntime's kernel is of opset 24: no windows, no mask that is shorter than the keys
_NEWER = {"ort": False}

# -- RotaryEmbedding -------------------------------------------------------------------------


def _rotary(note: str, x: Any, half: int, positions: Any = None, **rest: Any) -> Case:
    options = _options(rest)
    length = x.shape[1] if x.ndim == 3 else x.shape[2]
    table = (x.shape[0], length, half) if positions is None else (7, half)
    feeds = {"x": x, "cos": normal(*table, seed=1), "sin": normal(*table, seed=2)}
    if positions is not None:
        feeds["positions"] = positions

    def build(op: Any, **inputs: Any) -> Any:
        (y,) = _typed(op, "RotaryEmbedding", inputs.values(), [inputs["x"].shape], rest)
        return y

    return Case("RotaryEmbedding", build, feeds, note, **options)


# -- LinearAttention -------------------------------------------------------------------------


def _linear(note: str, rule: str, feeds: dict[str, Any], **rest: Any) -> Case:
    """Two heads of keys (size 3) and values (size 2), four of queries; five steps."""
    given = {"q": normal(2, 5, 12), "k": normal(2, 5, 6, seed=1), "v": normal(2, 5, 4, seed=2)}
    options = _options(rest)

    def build(op: Any, **inputs: Any) -> Any:
        values = [inputs.get(n) for n in ("q", "k", "v", "past", "decay", "beta")]
        shapes = [[*inputs["q"].shape[:2], 8], [inputs["q"].shape[0], 2, 3, 2]]
        attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule, **rest}
        return tuple(_typed(op, "LinearAttention", values, shapes, attributes))

    # stock onnxruntime knows opsets up to 26, not this operator
    return Case("LinearAttention", build, {**given, **feeds}, note, ort=False, **options)


_STATE = normal(2, 2, 3, 2, seed=3)
_FADE, _FADES = between(-1, 0, 2, 5, 2), between(-1, 0, 2, 5, 6)
_RATE = between(0.1, 0.9, 2, 5, 2)


# -- FlexAttention ---------------------------------------------------------------------------


def _flex(note: str, feeds: dict[str, Any], score: Any = None, prob: Any = None) -> Case:
    def build(op: Any, q: Any, k: Any, v: Any, **more: Any) -> Any:
        sizes = [*q.shape[:3], k.shape[2]]
        graphs = {
            name: body([("each", q.dtype, sizes)], lambda inner, x, w=write: w(inner, x, **more))
            for name, write in (("score_mod", score), ("prob_mod", prob))
            if write is not None
        }
        node = ir.node("FlexAttention", [q, k, v], graphs, domain="ai.onnx.preview")
        (y,) = node.outputs
        y.name, y.type, y.shape = op.name("y"), q.type, ir.Shape([*q.shape[:3], v.shape[3]])
        op.graph.append(node)
        op.graph.opset_imports["ai.onnx.preview"] = 1
        return y

    # stock onnxruntime does not know it
    return Case("ai.onnx.preview::FlexAttention", build, feeds, note, ort=False)


def _slanted(op: Any, x: Any, w: Any) -> Any:
    """Scores with a learned bias that the graph captures, and a cap."""
    return op.Tanh(op.Add(x, w))


_PLACES = np.array([[0, 3, 3, 6], [1, 2, 3, 0]])

CASES = [
    _rotary("", normal(2, 3, 4, 6), 3),
    _rotary("interleaved", normal(2, 3, 4, 6), 3, interleaved=1),
    _rotary("positions", normal(2, 3, 4, 6), 3, _PLACES),
    _rotary("partial", normal(2, 3, 4, 6), 2, _PLACES, rotary_embedding_dim=4, num_heads=3),
    _rotary(
        "partial, interleaved",
        normal(2, 3, 4, 6),
        2,
        rotary_embedding_dim=4,
        interleaved=1,
        num_heads=3,
    ),
    _rotary("three axes", normal(2, 4, 18), 3, _PLACES, num_heads=3),
    _rotary("three axes, interleaved", normal(2, 4, 18), 3, num_heads=3, interleaved=1),
    _linear("linear", "linear", {}),
    _linear("linear, a past and a scale", "linear", {"past": _STATE}, scale=0.3),
    _linear("gated", "gated", {"decay": _FADE}),
    _linear("gated, each key", "gated", {"decay": _FADES, "past": _STATE}),
    _linear("delta", "delta", {"beta": _RATE}),
    _linear("delta, one rate", "delta", {"beta": between(0.1, 0.9, 2, 5, 1), "past": _STATE}),
    _linear("gated delta", "gated_delta", {"decay": _FADE, "beta": _RATE, "past": _STATE}),
    _linear("gated delta, each key", "gated_delta", {"decay": _FADES, "beta": _RATE}),
    _flex("", _FOUR),
    _flex("scores changed", {**_FOUR, "w": normal(3, 1, 6)}, score=_slanted),
    _flex("both changed", _FOUR, lambda op, x: op.Mul(x, 0.5), lambda op, p: op.Mul(p, p)),
    _flex("grouped queries", _qkv((2, 4, 3, 5), (2, 2, 6, 5)), prob=lambda op, p: op.Sqrt(p)),
    _attention("", _FOUR),
    _attention("scale", _FOUR, scale=0.3),
    _attention("causal", _FOUR, is_causal=1),
    _attention("values of another size", _qkv((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2))),
    _attention("three axes", _THREE, **_HEADS),
    _attention("three axes, causal", _THREE, **_HEADS, is_causal=1),
    _attention("grouped queries", _qkv((2, 4, 3, 5), (2, 2, 6, 5))),
    _attention("one key head", _qkv((2, 4, 3, 5), (2, 1, 6, 5)), softcap=2.0),
    _attention("softcap", _FOUR, softcap=1.5),
    _attention("boolean mask", {**_FOUR, "mask": _KEPT}),
    _attention("blind queries", {**_FOUR, "mask": _BLIND}),
    _attention("mask", {**_FOUR, "mask": normal(4, 6)}),
    _attention("mask over the batch", {**_FOUR, "mask": normal(2, 1, 4, 6)}, is_causal=1),
    _attention("mask of heads", {**_FOUR, "mask": normal(3, 4, 6)}, softcap=2.0),
    _attention("mask that hides", {**_FOUR, "mask": _INF}, wrt=("q", "k", "v")),
    _attention("mask, grouped queries", {**_THREE, "mask": normal(4, 4, 5)}, **_HEADS),
    _attention("short mask", {**_FOUR, "mask": normal(4, 4)}, **_NEWER),
    _attention("past", {**_FOUR, **_PAST}, outputs=3),
    _attention("past, causal", {**_FOUR, **_PAST}, outputs=3, is_causal=1),
    _attention("past, only y", {**_FOUR, **_PAST}, outputs=3, returned=(0,)),
    _attention("past, mask", {**_FOUR, **_PAST, "mask": normal(4, 8)}, outputs=3),
    _attention("only present", {**_FOUR, **_PAST}, outputs=3, returned=(1, 2), wrt=("k", "v")),
    _attention("scores", _FOUR, outputs=4, returned=(0, 3)),
    _attention("only scores", _FOUR, outputs=4, returned=(3,), wrt=("q", "k")),
    _attention(
        "scores, capped", _FOUR, outputs=4, returned=(0, 3), qk_matmul_output_mode=1, softcap=1.5
    ),
    _attention(
        "scores, with the mask",
        {**_FOUR, "mask": normal(4, 6)},
        outputs=4,
        returned=(0, 3),
        qk_matmul_output_mode=2,
        softcap=1.5,
    ),
    _attention(
        "probabilities",
        {**_FOUR, "mask": _BLIND},
        outputs=4,
        returned=(0, 3),
        qk_matmul_output_mode=3,
    ),
    _attention("softmax precision", _FOUR, softmax_precision=11),
    _attention("left window", _FOUR, left_window_size=1, is_causal=1, **_NEWER),
    _attention("both windows", _FOUR, left_window_size=0, right_window_size=2, **_NEWER),
    _attention("window and past", {**_FOUR, **_PAST}, outputs=3, left_window_size=2, **_NEWER),
    _attention("lengths", {**_FOUR, **_LENGTHS}),
    _attention("lengths, causal", {**_FOUR, **_LENGTHS}, is_causal=1),
    _attention("no batch", _qkv((0, 4, 12), (0, 5, 6), (0, 5, 4)), **_HEADS, ort=False),
    _attention("no queries", _qkv((2, 3, 0, 5), (2, 3, 6, 5)), ort=False),  # it refuses
]
