"""Feeds: what a user calls a module with, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.errors import FeedError
from onward.graph.signature import check_symbols
from onward.programs.arrays import to_plain_array
from onward.providers.ort.bound import Argument, BoundSession, as_ort, is_ort


def check_feeds(
    session: BoundSession, names: Sequence[str], given: Sequence[Any]
) -> dict[str, Any]:
    """The inputs by name, of the number, types and shapes that the graph takes."""
    if len(given) != len(names):
        known = ", ".join(names)
        raise FeedError(
            f"the model takes {len(names)} inputs, not {len(given)}\ncall it with {known}"
        )
    sizes: dict[str, tuple[int, str]] = {}
    feeds = {}
    for name, value in zip(names, given):
        argument = session.inputs[name]
        feed = as_ort(value) if is_ort(value) else _array(argument, value)
        shape = tuple(feed.shape()) if is_ort(value) else feed.shape
        dtype = feed.data_type() if is_ort(value) else None
        if (dtype is not None and dtype != argument.type) or not argument.takes(shape):
            what = dtype or feed.dtype.name
            raise FeedError(f"input {name!r} is a {argument}, not {what} of shape {shape}")
        check_symbols(name, shape, argument.shape, sizes)
        feeds[name] = feed
    return feeds


def _array(argument: Argument, value: Any) -> Any:
    array = to_plain_array(value, f"input {argument.name!r}", FeedError)
    if argument.type == "tensor(string)":
        if array.dtype.kind not in "OUS":
            raise FeedError(f"input {argument.name!r} is a {argument}, not {array.dtype.name}")
        return array.astype(object)
    if array.dtype != argument.dtype and f"tensor({array.dtype.name})" != argument.type:
        hint = f"\ngive it as numpy.{argument.dtype}" if argument.dtype is not None else ""
        raise FeedError(
            f"input {argument.name!r} is a {argument}, "
            f"not {array.dtype.name} of shape {array.shape}{hint}"
        )
    return array
