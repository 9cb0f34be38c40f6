"""Feeds that nobody had to write: random tensors of the types and shapes that a session takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from onward.errors import FeedError, OptionError

_DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "string": np.object_,
    **{
        f"{kind}{bits}": np.dtype(f"{kind}{bits}")
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    "float16": np.float16,
    "bool": np.bool_,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "bfloat16": ml_dtypes.bfloat16,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e5m2": ml_dtypes.float8_e5m2,
}


def random_feeds(
    inputs: Iterable[Any], sizes: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, Any]:
    """A tensor for each input; a dimension that the model leaves open is `sizes[name]`, or 1.

    `inputs` are a session's `get_inputs()`. A size is given by the dimension's name ("batch"), or
    by input and place ("image:0"). Whole numbers are 0 or 1, which is a valid index, class, mask
    and token for nearly every model.
    """
    rng = np.random.default_rng(seed)
    inputs, given = list(inputs), dict(sizes or {})
    known = {
        name for arg in inputs for pair in enumerate(arg.shape or ()) for name in _names(arg, *pair)
    }
    for name in given:
        if name not in known:
            open_names = ", ".join(sorted(known)) or "none: every size is fixed"
            raise OptionError(f"no open dimension {name!r}\nthe model has {open_names}")
    return {arg.name: _draw(rng, arg, _shape(arg, given)) for arg in inputs}


def _names(arg: Any, place: int, size: Any) -> list[str]:
    """What a size may be called by; nothing where the model fixes it."""
    if isinstance(size, int):
        return []
    return [f"{arg.name}:{place}", *([size] if size else [])]


def _shape(arg: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape = []
    for place, size in enumerate(arg.shape or ()):
        names = [name for name in _names(arg, place, size) if name in sizes]
        shape.append(size if isinstance(size, int) else sizes[names[0]] if names else 1)
    return tuple(shape)


def _draw(rng: np.random.Generator, arg: Any, shape: tuple[int, ...]) -> Any:
    kind = re.fullmatch(r"(?:optional\()?tensor\((\w+)\)+", arg.type)
    if kind is None or kind[1] not in _DTYPES:
        raise FeedError(
            f"no random feed for input {arg.name!r} of type {arg.type}\nfeed it yourself"
        )
    dtype = np.dtype(_DTYPES[kind[1]])
    if dtype == np.object_:
        return np.full(shape, "onward", dtype)
    if dtype.kind in "iub" or "int" in dtype.name:
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)
