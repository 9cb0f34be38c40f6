"""NodeArg: the name, type and shape of a model's input or output; feeds are checked by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import FeedError
from onward.graph.dtypes import numpy_type, ort_type
from onward.message_text import format_sizes, suggest_names

Dimension = int | str | None  # a size, a symbol, or unknown


@dataclass(frozen=True)
class NodeArg:
    """One input or output of a model, in ONNX Runtime's words."""

    name: str
    type: str  # as ONNX Runtime writes it: "tensor(float)", "seq(tensor(int64))"
    shape: Sequence[Dimension]
    is_ranked: bool = True  # False: the rank is unknown, and the shape is []


def read_feeds(feeds: Any, inputs: Sequence[Any], defaulted: Sequence[Any] = ()) -> dict[str, Any]:
    """Convert feeds to what engines take: numbers and nested lists to arrays, tensors unchanged.

    `inputs` and `defaulted`, which need no feed, are NodeArgs (ours or ONNX Runtime's). A feed
    that does not fit its input raises a FeedError of one line.
    """
    if not hasattr(feeds, "items"):
        names = ", ".join(f"{arg.name!r}: ..." for arg in inputs[:3])
        raise FeedError(
            f"feeds must be a dict of tensors by input, not {_kind(feeds)}\ngive {{{names}}}"
        )
    known = {arg.name: arg for arg in (*inputs, *defaulted)}
    check_names(feeds, known)
    ready = {name: _read_feed(feed, known[name]) for name, feed in feeds.items()}
    check_feeds(ready, inputs, [arg.name for arg in defaulted])
    return ready


def check_names(names: Iterable[Any], known: Collection[str]) -> None:
    """Refuse a feed whose name no input has."""
    for name in names:
        if name not in known:
            raise FeedError(f"no input {name!r}; {suggest_names(name, known, 'the model takes')}")


def _read_feed(feed: Any, arg: Any) -> Any:
    """Convert one feed to a tensor, or refuse it."""
    if feed is None:
        if arg.type.startswith("optional"):
            return None
        raise FeedError(
            f"input {arg.name!r} is None, but takes {arg.type} of shape {_shape(arg.shape)}"
        )
    if isinstance(feed, np.ndarray):
        return feed if feed.dtype.isnative else feed.astype(feed.dtype.newbyteorder("="))
    if isinstance(feed, np.generic):
        return np.asarray(feed)
    if hasattr(feed, "__dlpack__") or not arg.type.removeprefix("optional(").startswith("tensor("):
        return feed  # another engine's tensor; a sequence or a map
    return to_array(feed, numpy_type(arg.type), f"input {arg.name!r} takes {arg.type}")


def to_array(value: Any, dtype: np.dtype[Any] | None, takes: str) -> np.ndarray[Any, Any]:
    """Convert numbers, text or nested lists to an array of the declared type.

    `takes` is the start of the message if the type cannot hold them.
    """
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise FeedError(f"{takes}, but was given lists of different lengths") from error
    if dtype is None:
        return found
    if found.size and found.dtype.kind not in ("U" if dtype == np.object_ else "biuf"):
        first = found.flat[0] if isinstance(value, (list, tuple)) else value
        if isinstance(first, int) and dtype != np.object_:  # of more than 64 bits
            raise FeedError(f"{takes}, which cannot hold {first}")
        raise FeedError(f"{takes}, but was given {_kind(first)}")
    with np.errstate(all="ignore"):
        array = found.astype(dtype)
    if dtype.kind in "biu" and not np.array_equal(array, found):
        wrong = found[array != found].flat[0]
        raise FeedError(f"{takes}, which cannot hold {wrong}")
    return array


def _kind(value: Any) -> str:
    """
    >>> _kind(None), _kind(3), _kind("text")
    ('None', 'an int', 'a str')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def check_feeds(feeds: Mapping[str, Any], inputs: Sequence[Any], optional: Sequence[str]) -> None:
    """Refuse feeds of a wrong name, type, rank or dimension, in one line.

    `inputs` are NodeArgs (ours or ONNX Runtime's); `optional` are inputs that have a default.
    """
    known = {arg.name: arg for arg in inputs}
    check_names((name for name in feeds if name not in optional), known)
    for name, arg in known.items():
        if name in feeds:
            _check_feed(feeds[name], arg)
        elif name not in optional and not arg.type.startswith("optional"):
            raise FeedError(f"input {name!r} is missing: {arg.type} of shape {_shape(arg.shape)}")
    seen: dict[str, tuple[int, str]] = {}
    for arg in inputs:
        given = _sizes(feeds.get(arg.name))
        if given is not None and len(given) == len(arg.shape):
            check_symbols(arg.name, given, arg.shape, seen)


def _sizes(feed: Any) -> tuple[int, ...] | None:
    """The shape of an array or of another engine's tensor, else None."""
    shape = getattr(feed, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else None


def _check_feed(feed: Any, arg: Any) -> None:
    given = _sizes(feed)
    if not arg.type.startswith("tensor(") or given is None:
        return
    if isinstance(feed, (np.ndarray, np.generic)) and (kind := ort_type(feed.dtype)) != arg.type:
        raise FeedError(f"input {arg.name!r} takes {arg.type}, but was given {kind}")
    shape = list(arg.shape)
    if not shape and not getattr(arg, "is_ranked", False):  # a scalar, or of unknown rank
        return
    if len(given) != len(shape):
        raise FeedError(
            f"input {arg.name!r} takes shape {_shape(shape)}, but was given {_shape(given)}"
        )
    for axis, (size, wanted) in enumerate(zip(given, shape, strict=True)):
        if isinstance(wanted, int) and wanted >= 0 and wanted != size:
            raise FeedError(
                f"input {arg.name!r} takes shape {_shape(shape)}, "
                f"but was given {_shape(given)}: dimension {axis} is {size}"
            )


def check_symbols(
    name: str, shape: Sequence[int], law: Sequence[Any], seen: dict[str, tuple[int, str]]
) -> None:
    """Refuse a symbol with two sizes in one call; `seen` has those of the previous feeds."""
    for size, symbol in zip(shape, law):
        if not isinstance(symbol, str):
            continue
        first, where = seen.setdefault(symbol, (size, name))
        if first != size:
            raise FeedError(
                f"dimension {symbol!r} is {first} in input {where!r} but {size} in {name!r}"
            )


def _shape(shape: Sequence[Dimension]) -> str:
    return f"({format_sizes(shape)})"
