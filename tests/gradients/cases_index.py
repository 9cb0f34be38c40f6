"""Cases of rules/index.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, integers, normal, spread


def gather(feed: Any, indices: Any, note: str = "", **attributes: Any) -> Case:
    return Case(
        "Gather",
        lambda op, x, indices: op.Gather(x, indices, **attributes),
        {"x": feed, "indices": np.array(indices)},
        note,
    )


def fixed(feed: Any, indices: Any, note: str = "", **attributes: Any) -> Case:
    return Case("Gather", lambda op, x: op.Gather(x, indices, **attributes), {"x": feed}, note)


def unique(feed: Any, note: str = "", **attributes: Any) -> Case:
    return Case(
        "Unique",
        lambda op, x: op.Unique(x, **attributes),
        {"x": feed},
        note,
        autograd=False,  # torch's own unique has no gradient
    )


CONDITION = np.array([False, True, True, False, True])

CASES = [
    gather(normal(5, 3), [[0, 4], [4, -1]]),
    gather(normal(2, 5, 3), [[0, 4, 1], [4, -2, 4]], "in the middle", axis=1),
    gather(normal(2, 5, 3), [1, 1], "last axis", axis=-1),
    gather(normal(5), [3, 3, 0], "of a vector"),
    gather(normal(2, 5), -2, "one slice", axis=1),
    gather(normal(2, 5), np.zeros((0,), np.int64), "nothing", axis=1),
    gather(normal(2, 5), np.array([1, 1, 3], np.int32), "int32", axis=1),
    gather(normal(0, 5), [1, 1, 3], "empty", axis=1),
    fixed(normal(2, 5, 3), np.int64(-2), "one slice, known", axis=1),
    fixed(normal(2, 5, 3), np.array([1]), "one slice, known, kept", axis=-1),
    fixed(normal(2, 5, 3), np.array([[[4]]]), "one slice, known, more axes", axis=1),
    fixed(normal(2, 5, 3), np.array([0, 2, 2]), "known", axis=2),
    fixed(normal(5), np.int64(2), "one element"),
    Case(
        "ai.onnx.ml::ArrayFeatureExtractor",
        lambda op, x, i: op.ArrayFeatureExtractor(x, i, domain="ai.onnx.ml"),
        {"x": normal(3, 5), "i": np.array([[0, 4, 4]])},
        autograd=False,  # computed by the reference provider
    ),
    Case(
        "GatherElements",
        lambda op, x, i: op.GatherElements(x, i),
        {"x": normal(4, 3), "i": integers(-4, 4, 5, 3)},
    ),
    Case(
        "GatherElements",
        lambda op, x, i: op.GatherElements(x, i, axis=-1),
        {"x": normal(4, 3), "i": integers(0, 3, 2, 5).astype(np.int32)},
        "last axis",
    ),
    Case(
        "GatherND",
        lambda op, x, i: op.GatherND(x, i),
        {"x": normal(3, 4, 2), "i": np.array([[[0, 1], [2, -1]], [[2, 3], [0, 1]]])},
    ),
    Case(
        "GatherND",
        lambda op, x, i: op.GatherND(x, i),
        {"x": normal(3, 4), "i": np.array([[0, 1], [0, 1], [-3, 1]])},
        "elements, one thrice",
    ),
    Case(
        "GatherND",
        lambda op, x, i: op.GatherND(x, i, batch_dims=1),
        {"x": normal(2, 3, 4), "i": np.array([[[1], [1]], [[-1], [0]]])},
        "a batch axis",
    ),
    Case(
        "GatherND",
        lambda op, x, i: op.GatherND(x, i, batch_dims=2),
        {"x": normal(2, 3, 4, 2), "i": integers(0, 2, 2, 3, 5, 2)},
        "two batch axes",
    ),
    Case("TopK", lambda op, x: op.TopK(x, [2], outputs=2), {"x": spread(3, 4)}),
    Case(
        "TopK",
        lambda op, x: op.TopK(x, [2], axis=0, largest=0, outputs=2),
        {"x": spread(3, 4)},
        "smallest, first axis",
    ),
    Case(
        "TopK",
        lambda op, x, k: op.TopK(x, k, outputs=2),
        {"x": spread(3, 4), "k": np.array([3])},
        "k fed",
    ),
    Case(
        "TopK",
        lambda op, x: op.TopK(x, [2], outputs=2)[0],
        {"x": np.array([1.0, 3.0, 3.0, 3.0])},
        "ties: the first",
        differences=False,
    ),
    Case(
        "Compress",
        lambda op, x, c: op.Compress(x, c, axis=1),
        {"x": normal(3, 5, 2), "c": CONDITION},
    ),
    Case(
        "Compress",
        lambda op, x, c: op.Compress(x, c, axis=-1),
        {"x": normal(3, 6), "c": CONDITION},
        "short condition",
    ),
    Case(
        "Compress", lambda op, x, c: op.Compress(x, c), {"x": normal(3, 2), "c": CONDITION}, "flat"
    ),
    unique(spread(7)),
    unique(spread(2, 3), "flat"),
    unique(spread(3, 2), "in order of appearance", sorted=0),
    unique(spread(3, 2), "rows", axis=0),
    unique(spread(3, 2), "columns", axis=-1),
    Case(
        "Unique",
        lambda op, x: op.Unique(x),
        {"x": np.array([1.0, 2.0, 1.0, 3.0])},
        "ties share",
        autograd=False,
        differences=False,  # moved apart, they are no longer one
    ),
    Case(
        "OneHot",
        lambda op, i, values: op.OneHot(i, np.int64(4), values),
        {"i": np.array([[0, 3], [-1, 7]]), "values": normal(2)},
    ),
    Case(
        "OneHot",
        lambda op, i, values: op.OneHot(i, np.int64(4), values, axis=0),
        {"i": np.array([0, 3, 1]), "values": normal(2)},
        "first axis",
    ),
]
