"""Cases of rules/contrib_attention.py and rules/contrib_group_attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, normal

MICROSOFT = "com.microsoft"
Shapes = list[list[Any]]


def _contrib(
    operator: str,
    note: str,
    feeds: dict[str, Any],
    order: str,
    shapes: Any,  # of the outputs: lists, or a function of the inputs
    returned: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
    **attributes: Any,
) -> Case:
    """ONNX knows nothing of these operators: the outputs' types are given here."""

    def build(op: Any, **inputs: Any) -> Any:
        given = [inputs.get(name) for name in order.split()]
        while given[-1] is None:
            given.pop()
        sizes = shapes(**inputs) if callable(shapes) else shapes
        node = ir.node(operator, given, attributes, domain=MICROSOFT, num_outputs=len(sizes))
        op.graph.append(node)
        op.graph.opset_imports.setdefault(MICROSOFT, 1)
        first = next(x for x in given if x is not None)
        for y, shape in zip(node.outputs, sizes):
            y.name, y.type, y.shape = op.name(operator), first.type, ir.Shape(shape)
        chosen = range(len(sizes)) if returned is None else returned
        return tuple(node.outputs[i] for i in chosen)

    return Case(f"{MICROSOFT}::{operator}", build, feeds, note, **(options or {}))


# -- RotaryEmbedding -------------------------------------------------------------------------

_TABLES = {"cos": normal(7, 3, seed=1), "sin": normal(7, 3, seed=2)}
_PLACES = np.array([[0, 3, 3, 6], [1, 2, 3, 0]])


def _rotary(note: str, x: Any, places: Any, **rest: Any) -> Case:
    feeds = {"x": x, "places": places, **_TABLES}
    # how many heads there are follows from the sizes
    options = {"fixed": tuple(feeds)} if x.ndim == 3 and not rest.get("num_heads") else {}
    return _contrib(
        "RotaryEmbedding",
        note,
        feeds,
        "x places cos sin",
        lambda x, **_: [x.shape],
        options=options,
        **rest,
    )


# -- MultiHeadAttention and Attention --------------------------------------------------------

_ORDER = "q k v bias mask added past_k past_v"
_PAST = {"past_k": normal(2, 2, 3, 4, seed=3), "past_v": normal(2, 2, 3, 4, seed=4)}
_QKV = {"q": normal(2, 5, 8), "k": normal(2, 6, 8, seed=1), "v": normal(2, 6, 8, seed=2)}
_SELF = {**_QKV, "k": normal(2, 5, 8, seed=1), "v": normal(2, 5, 8, seed=2)}
_NOT_ON_CPU = {"ort": False}  # stock onnxruntime has these on CUDA only
_HEADS = {"num_heads": 2}
_PADDING = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)


def _many(note: str, feeds: dict[str, Any], **rest: Any) -> Case:
    shapes = rest.pop("shapes", [[2, 5, 8]])
    return _contrib("MultiHeadAttention", note, feeds, _ORDER, shapes, **_HEADS, **rest)


def _self(note: str, feeds: dict[str, Any], **rest: Any) -> Case:
    given = {"x": normal(2, 5, 3), "w": normal(3, 24, seed=1), "b": normal(24), **feeds}
    shapes = rest.pop("shapes", [[2, 5, 8]])
    return _contrib("Attention", note, given, "x w b mask past added", shapes, **_HEADS, **rest)


# -- GroupQueryAttention ---------------------------------------------------------------------

_GROUP_ORDER = "q k v past_k past_v lengths total cos sin places added sink ks vs qn kn"
_GROUP = {"num_heads": 4, "kv_num_heads": 2}
_ANGLES = {"cos": normal(9, 8, seed=5), "sin": normal(9, 8, seed=6)}  # heads are of size 16


def _first(batch: int = 2) -> dict[str, Any]:
    """Three tokens, nothing in the cache."""
    return {
        "q": normal(batch, 3, 64),
        "k": normal(batch, 3, 32, seed=1),
        "v": normal(batch, 3, 32, seed=2),
        "lengths": np.array([2] * batch, np.int32),
        "total": np.array(3, np.int32),
    }


def _cached(batch: int = 1) -> dict[str, Any]:
    """Three tokens, behind four (and two) that are in a cache of eight."""
    return {
        **_first(batch),
        "past_k": normal(batch, 2, 8, 16, seed=3),
        "past_v": normal(batch, 2, 8, 16, seed=4),
        "lengths": np.array([6, 4][:batch], np.int32),
        "total": np.array(7, np.int32),
    }


def _group(note: str, feeds: dict[str, Any], **rest: Any) -> Case:
    batch, length = len(feeds["lengths"]), 8 if "past_k" in feeds else 3
    shapes = [[batch, 3, 64], [batch, 2, length, 16], [batch, 2, length, 16]]
    if rest.get("qk_output"):
        shapes.append([batch, 4, 3, int(feeds["total"])])
    # stock onnxruntime takes one sequence at a time behind a cache
    options = {"ort": not (batch > 1 and "past_k" in feeds) and rest.pop("ort", True)}
    return _contrib(
        "GroupQueryAttention",
        note,
        feeds,
        _GROUP_ORDER,
        shapes,
        options=options,
        **{**_GROUP, **rest},
    )


CASES = [
    _rotary("", normal(2, 3, 4, 6), _PLACES),
    _rotary("interleaved", normal(2, 3, 4, 6), _PLACES, interleaved=1),
    _rotary("an offset", normal(2, 3, 4, 6), np.array([2])),
    _rotary("three axes", normal(2, 4, 12), _PLACES),
    _rotary("partial", normal(2, 4, 16), _PLACES, num_heads=2, rotary_embedding_dim=6),
    _many("", _QKV),
    _many("scale", _QKV, scale=0.7),
    _many("bias", {**_QKV, "bias": normal(24)}),
    _many("bias and scores", {**_QKV, "added": normal(2, 2, 5, 6)}),
    _many("padding", {**_QKV, "mask": _PADDING}),
    _many("causal", _SELF, unidirectional=1),
    _many("packed", {"q": normal(2, 5, 2, 3, 4)}, options=_NOT_ON_CPU),
    _many(
        "keys and values packed",
        {"q": normal(2, 5, 8), "k": normal(2, 6, 2, 2, 4)},
        options=_NOT_ON_CPU,
    ),
    _many(
        "past",
        {**_QKV, **_PAST},
        shapes=[[2, 5, 8], [2, 2, 9, 4], [2, 2, 9, 4]],
    ),
    _many(
        "keys from a cache",
        {"q": normal(2, 5, 8), "k": normal(2, 2, 6, 4), "v": normal(2, 2, 6, 4, seed=1)},
    ),
    _self("", {}),
    _self("causal", {}, unidirectional=1),
    _self("padding", {"mask": _PADDING[:, 1:]}),
    _self("lengths", {"mask": np.array([3, 5], np.int32)}),
    _self("ends and starts", {"mask": np.array([3, 5, 1, 0], np.int32)}),
    _self(
        "past",
        {"past": normal(2, 2, 2, 3, 4)},
        shapes=[[2, 5, 8], [2, 2, 2, 8, 4]],
        unidirectional=1,
    ),
    _self("added scores", {"added": normal(2, 2, 5, 5)}, scale=0.4),
    _group("", _first()),
    _group(
        "one packed input",
        {"q": normal(2, 3, 128), **{n: _first()[n] for n in ("lengths", "total")}},
    ),
    _group("rotary", {**_first(), **_ANGLES}, do_rotary=1),
    _group("rotary, interleaved", {**_first(), **_ANGLES}, do_rotary=1, rotary_interleaved=1),
    _group("cache", _cached()),
    _group("cache of two", _cached(2)),
    _group("cache, rotary", {**_cached(), **_ANGLES}, do_rotary=1, scale=0.4),
    _group("window", _cached(), local_window_size=2),
    _group("softcap", _first(), softcap=2.0),
    _group("smooth", _first(), smooth_softmax=1),
    _group("sink", {**_first(), "sink": normal(4)}),
    _group("sink and cache", {**_cached(2), "sink": normal(4)}, softcap=3.0),
    _group("added scores", {**_first(), "added": normal(2, 1, 3, 3)}),
    _group("probabilities", _first(), qk_output=2),
    _group(
        "normalised", {**_first(), "qn": normal(16), "kn": normal(16, seed=1)}, ort=False
    ),  # stock onnxruntime: on CUDA only
]
