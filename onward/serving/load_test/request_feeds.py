"""The feeds of a load test: from a file of requests, or random ones that fit the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import FeedError, FileMissing, OptionError
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES, from_json

Feeds = dict[str, Array]


def read_feeds(path: Path, inputs: Sequence[TensorSpec]) -> list[Feeds]:
    """The requests of a file.

    .npz: the first axis of each array counts the requests. .jsonl: a request in each line, as
    the protocol has it ({"inputs": [...]}) or as {"name": data}.
    """
    if not path.exists():
        raise FileMissing(f"there is no file {path}")
    if path.suffix == ".npz":
        return _from_npz(path, inputs)
    if path.suffix in (".jsonl", ".json"):
        lines = path.read_text("utf-8").splitlines()
        requests = [_from_line(n, line, inputs) for n, line in enumerate(lines, 1) if line.strip()]
        if not requests:
            raise FeedError(f"{path} has no request: each line is one")
        return requests
    raise FeedError(f"{path} is not a file of requests: they are .npz or .jsonl")


def random_feeds(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], count: int, seed: int
) -> list[Feeds]:
    """Random requests; integers are 0 or 1, which are in any vocabulary, mask and range."""
    if unknown := sorted(set(shapes) - {spec.name for spec in inputs}):
        names = ", ".join(spec.name for spec in inputs)
        raise OptionError(f"--shape names {unknown[0]}, but the model's inputs are {names}")
    rng = np.random.default_rng(seed)
    needed = [spec for spec in inputs if not spec.is_optional or spec.name in shapes]
    return [
        {spec.name: _random(spec, _fix_shape(spec, shapes.get(spec.name)), rng) for spec in needed}
        for _ in range(count)
    ]


def _fix_shape(spec: TensorSpec, given: Sequence[int] | None) -> tuple[int, ...]:
    """The input's shape with every -1 replaced: by the given sizes, or by 1."""
    if given is None:
        return tuple(1 if size < 0 else size for size in spec.shape)
    fits = len(given) == len(spec.shape) and all(
        size in (-1, one) for size, one in zip(spec.shape, given)
    )
    if not fits:
        raise OptionError(
            f"--shape gives {spec.name} {list(given)}, but the model takes {list(spec.shape)}"
        )
    return tuple(given)


def _random(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    dtype = DATATYPES[spec.datatype]
    if spec.datatype == "BYTES":
        words = np.empty(shape, object)
        words.flat[:] = [b"word %d" % n for n in rng.integers(0, 1000, words.size)]
        return words
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.asarray(rng.normal(size=shape)).astype(dtype)


def _from_npz(path: Path, inputs: Sequence[TensorSpec]) -> list[Feeds]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    counts = {len(array) if array.ndim else -1 for array in arrays.values()}
    if len(counts) != 1 or min(counts) < 1:
        raise FeedError(
            f"the arrays of {path} have different lengths, or none: their first axis counts the "
            "requests"
        )
    types = {spec.name: DATATYPES[spec.datatype] for spec in inputs}
    for name in arrays:
        _check_name(name, inputs)
    return [
        {name: np.asarray(array[place]).astype(types[name]) for name, array in arrays.items()}
        for place in range(counts.pop())
    ]


def _from_line(number: int, line: str, inputs: Sequence[TensorSpec]) -> Feeds:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise FeedError(f"line {number} of the requests is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise FeedError(f"line {number} of the requests is not an object")
    if isinstance(request.get("inputs"), list):
        return dict(_from_protocol(entry, number) for entry in request["inputs"])
    specs = {spec.name: spec for spec in inputs}
    feeds = {}
    for name, data in request.items():
        _check_name(name, inputs)
        if specs[name].datatype == "BYTES":
            feeds[name] = from_json(name, "BYTES", np.shape(data), data)
        else:
            feeds[name] = np.array(data, DATATYPES[specs[name].datatype])
    return feeds


def _from_protocol(entry: Any, number: int) -> tuple[str, Array]:
    try:
        name, datatype, shape = entry["name"], entry["datatype"], tuple(entry["shape"])
        return name, from_json(name, datatype, shape, entry["data"])
    except (KeyError, TypeError) as error:
        raise FeedError(
            f"line {number} of the requests: an input needs name, datatype, shape and data "
            f"({error})"
        ) from None


def _check_name(name: str, inputs: Sequence[TensorSpec]) -> None:
    if name not in {spec.name for spec in inputs}:
        names = ", ".join(spec.name for spec in inputs)
        raise FeedError(f"the requests feed {name}, but the model's inputs are {names}")
