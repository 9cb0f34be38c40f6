"""What a model takes and gives: names, types, symbolic shapes; and the check of feeds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import FeedError
from onward.names import near, spell_sizes

Dimension = int | str | None  # a size, a symbol, or unknown

# ONNX Runtime's spelling of a type <- numpy's name of it
_SPELLINGS = {
    "float32": "float",
    "float64": "double",
    "str_": "string",
    "object": "string",
    "complex64": "complex64",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}


@dataclass(frozen=True)
class NodeArg:
    """One input or output of a model, in ONNX Runtime's words."""

    name: str
    type: str  # as ONNX Runtime writes it: "tensor(float)", "seq(tensor(int64))"
    shape: Sequence[Dimension]
    is_ranked: bool = True  # False: the shape is not known, and [] stands for any


@functools.cache
def spell(dtype: np.dtype[Any]) -> str:
    """A numpy type in ONNX Runtime's words.

    >>> spell(np.dtype("float32"))
    'tensor(float)'
    """
    name = "str_" if dtype.kind in "US" else dtype.name
    return f"tensor({_SPELLINGS.get(name, name)})"


def check_feeds(feeds: Mapping[str, Any], inputs: Sequence[Any], optional: Sequence[str]) -> None:
    """Say in one line what is wrong with the feeds: a name, a type, a rank, a dimension.

    `inputs` are NodeArgs (ours or ONNX Runtime's); `optional` are inputs that have a default.
    """
    known = {arg.name: arg for arg in inputs}
    for name in feeds:
        if name not in known and name not in optional:
            raise FeedError(f"no input {name!r}; {near(name, known, 'the model takes')}")
    for name, arg in known.items():
        if name in feeds:
            _check_feed(feeds[name], arg)
        elif name not in optional and not arg.type.startswith("optional"):
            raise FeedError(f"input {name!r} is missing: {arg.type} of shape {_shape(arg.shape)}")
    seen: dict[str, tuple[int, str]] = {}
    for arg in inputs:
        feed = feeds.get(arg.name)
        if isinstance(feed, np.ndarray) and feed.ndim == len(arg.shape):
            check_symbols(arg.name, feed.shape, arg.shape, seen)


def _check_feed(feed: Any, arg: Any) -> None:
    if not arg.type.startswith("tensor(") or not isinstance(feed, (np.ndarray, np.generic)):
        return
    given = spell(feed.dtype)
    if given != arg.type:
        raise FeedError(f"input {arg.name!r} takes {arg.type}, but was given {given}")
    shape = list(arg.shape)
    if not shape and not getattr(arg, "is_ranked", False):  # ONNX Runtime does not tell
        return
    if feed.ndim != len(shape):
        raise FeedError(
            f"input {arg.name!r} takes shape {_shape(shape)}, but was given {_shape(feed.shape)}"
        )
    for axis, (size, wanted) in enumerate(zip(feed.shape, shape, strict=True)):
        if isinstance(wanted, int) and wanted >= 0 and wanted != size:
            raise FeedError(
                f"input {arg.name!r} takes shape {_shape(shape)}, "
                f"but was given {_shape(feed.shape)}: dimension {axis} is {size}"
            )


def check_symbols(
    name: str, shape: Sequence[int], law: Sequence[Any], seen: dict[str, tuple[int, str]]
) -> None:
    """A symbol has one size in all the feeds of a call: `seen` is those of the feeds before."""
    for size, symbol in zip(shape, law):
        if not isinstance(symbol, str):
            continue
        first, where = seen.setdefault(symbol, (size, name))
        if first != size:
            raise FeedError(
                f"dimension {symbol!r} is {first} in input {where!r} but {size} in {name!r}"
            )


def _shape(shape: Sequence[Dimension]) -> str:
    return f"({spell_sizes(shape)})"
