"""Make random feeds for a session's inputs, and check the sizes of dynamic dimensions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import FeedError, OptionError
from onward.graph.dtypes import numpy_type
from onward.message_text import suggest_names


def random_feeds(
    inputs: Iterable[Any], sizes: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, Any]:
    """A tensor for each input; a dynamic dimension has size `sizes[name]`, or 1.

    `inputs` are a session's `get_inputs()`. A size is given by the dimension's name ("batch"), or
    by input and place ("image:0"). Whole numbers are 0 or 1, which is a valid index, class, mask
    and token for nearly every model.
    """
    rng = np.random.default_rng(seed)
    inputs, given = list(inputs), dict(sizes or {})
    check_sizes(given, dynamic_names((arg.name, arg.shape) for arg in inputs))
    return {arg.name: _draw(rng, arg, _shape(arg, given)) for arg in inputs}


def check_sizes(sizes: Iterable[str], known: Collection[str]) -> None:
    """Refuse a size whose name no dynamic dimension has."""
    for name in sizes:
        if name not in known:
            fixed = "the model has none: every size is fixed"
            hint = suggest_names(name, sorted(known), "the model has") if known else fixed
            raise OptionError(f"no dynamic dimension {name!r}\n{hint}")


def dynamic_names(inputs: Iterable[tuple[str, Sequence[Any] | None]]) -> set[str]:
    """The names of the dynamic dimensions of inputs, each given as name and shape."""
    return {
        name
        for given, shape in inputs
        for place, size in enumerate(shape or ())
        for name in names_of_size(given, place, size)
    }


def names_of_size(name: str, place: int, size: Any) -> list[str]:
    """The names of one dimension of an input; none if the model fixes its size."""
    if isinstance(size, int):
        return []
    return [f"{name}:{place}", *([size] if size else [])]


def input_shapes(
    inputs: Sequence[tuple[str, str, Sequence[Any]]], sizes: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """The shape of each input, from sizes of dimensions or from feeds."""
    if any(not isinstance(size, (int, np.integer)) for size in sizes.values()):
        names = sorted(name for name, _, _ in inputs)
        for name in sizes:
            if name not in names:
                raise FeedError(
                    f"no input {name!r}; {suggest_names(name, names, 'the model takes')}"
                )
        return {name: tuple(np.shape(feed)) for name, feed in sizes.items()}
    check_sizes(sorted(sizes), dynamic_names((name, dims) for name, _, dims in inputs))
    shapes: dict[str, tuple[int, ...]] = {}
    missing: list[str] = []
    for name, kind, dims in inputs:
        if not kind.startswith("tensor("):
            raise OptionError(f"input {name!r} is a {kind}\nplan with feeds instead of sizes")
        shape = []
        for place, dim in enumerate(dims):
            found = [n for n in names_of_size(name, place, dim) if n in sizes]
            if isinstance(dim, int):
                shape.append(dim)
            elif found:
                shape.append(int(sizes[found[0]]))
            else:
                missing.append(f"{dim!r} of input {name!r}" if dim else f"'{name}:{place}'")
        shapes[name] = tuple(shape)
    if missing:
        raise OptionError(
            f"the sizes of {', '.join(missing)} are unknown: the inputs depend on them\n"
            "give each: sizes={'batch': 8}, 'input:place' where it has no name, or give feeds"
        )
    return shapes


def _shape(arg: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape = []
    for place, size in enumerate(arg.shape or ()):
        names = [name for name in names_of_size(arg.name, place, size) if name in sizes]
        shape.append(size if isinstance(size, int) else sizes[names[0]] if names else 1)
    return tuple(shape)


def _draw(rng: np.random.Generator, arg: Any, shape: tuple[int, ...]) -> Any:
    kind = re.fullmatch(r"(?:optional\()?tensor\((\w+)\)+", arg.type)
    dtype = None if kind is None else numpy_type(kind[1])
    if dtype is None or dtype.name == "float8_e8m0fnu":  # which has no negative numbers
        raise FeedError(
            f"no random feed for input {arg.name!r} of type {arg.type}\nfeed it yourself"
        )
    if dtype == np.object_:
        return np.full(shape, "onward", dtype)
    if dtype.kind in "iub" or "int" in dtype.name:
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)
