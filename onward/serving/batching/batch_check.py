"""Check that joining requests changes no answer: run random requests one by one and joined.

Requests that are alike, and requests that contrast: zeros next to elements a hundred times as
large, a short one next to a long one. A model may take a maximum, a scale or a length from its
batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from onward.serving.batching.batch import BatchLayout, Feeds, join_feeds, split_outputs
from onward.serving.instance import Instance
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES

# Sizes of free axes to try: small ones are fast, but a model for images may need large ones.
TRIED_SIZES = (8, 32, 224)
# Of the largest element of an output. A different kernel for another batch size stays within it.
_TOLERANCE = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 1e-3, "float64": 1e-6}
# The elements of requests that are joined: as they are drawn, all zero, and large.
PLAIN, ZERO, LARGE = "plain", "zero", "large"
_LARGE_FACTOR = 100
_ORT_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_ORT_NODE = re.compile(
    r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: "
)
# /path/file.h:12 type name::function(arguments) const [with T = type]
_CPP_PLACE = re.compile(
    r"/\S+:\d+ (?:[\w:<>*&, ]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_LARGE_TEXT = 32  # words


class NotRunnable(Exception):
    """A model cannot be run with random feeds."""


def find_changed_answer(instance: Instance, layout: BatchLayout, max_rows: int) -> str:
    """Why answers of joined requests differ from those of single ones; empty if they do not."""
    rows = (1, 2, 1) if max_rows >= 4 else (1,) * min(max_rows, 3)
    size, requests, singles = _run_singles(instance, layout, rows)
    again = _run_single(instance, layout, requests[0], rows[0])
    if reason := _compare(singles[0], again):
        return f"its answers change from run to run: {reason}"
    if reason := _compare_joined(instance, layout, rows, requests, singles):
        return reason
    usual = {name: _scale(array) for name, array in singles[0].items()}
    pairs = [(ZERO, LARGE, PLAIN)] if len(rows) > 2 else [(ZERO, LARGE), (LARGE, PLAIN)]
    for kinds in pairs:
        for place, kind in enumerate(kinds[: len(rows)]):
            found = _run_contrasting(instance, layout, rows[place], size, kind)
            if found is not None:  # else the model does not take such a request
                requests[place], singles[place] = found
        if reason := _compare_joined(instance, layout, rows, requests, singles, usual):
            return reason
    return ""


def run_once(instance: Instance, layout: BatchLayout) -> None:
    """Warm up an instance with a random request of one row."""
    _run_singles(instance, layout, (1,))


def random_feeds(
    specs: Iterable[TensorSpec],
    axes: Mapping[str, int],
    rows: int,
    size: int,
    lengths: Mapping[str, int],
    seed: int,
    kind: str = PLAIN,
) -> dict[str, Array]:
    """A random request: `size` along free axes, `lengths` along those of some names."""
    random = np.random.default_rng(seed)
    specs = list(specs)
    names = {_axis_name(spec, axes[spec.name]) for spec in specs if spec.name in axes} - {""}
    sizes = {**lengths, **dict.fromkeys(names, rows)}
    feeds: dict[str, Array] = {}
    for spec in specs:
        shape = [
            rows if axis == axes.get(spec.name)
            else lengths[f"{spec.name}:{axis}"] if f"{spec.name}:{axis}" in lengths
            else each if each != -1
            else sizes.get(_axis_name(spec, axis), size)
            for axis, each in enumerate(spec.shape)
        ]  # fmt: skip
        dtype = DATATYPES[spec.datatype]
        if spec.samples:
            drawn = random.integers(0, len(spec.samples), shape)
            feeds[spec.name] = np.array(spec.samples, dtype)[drawn]
        else:
            feeds[spec.name] = _draw(random, dtype, shape, kind)
    return feeds


def one_line(error: BaseException) -> str:
    """The message of an error without its line breaks, at most 300 characters of it.

    The place in the engine's C++ code is left out: what is wrong with the request follows it.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    text = _ORT_NODE.sub(r"\1 node '\2': ", _ORT_CODE.sub("", _CPP_PLACE.sub("", text)))
    return text if len(text) <= 300 else f"{text[:300]}..."


def _run_singles(
    instance: Instance, layout: BatchLayout, rows: Sequence[int]
) -> tuple[int, list[Feeds], list[dict[str, Array]]]:
    """A size that the model takes, random requests of it, and their answers one by one."""
    failure: BaseException = ValueError("no random feeds")
    for size in TRIED_SIZES:
        requests: list[Feeds] = []
        try:
            for seed, count in enumerate(rows):
                length = max(1, size - 3 * seed)
                requests.append(_request(instance, layout, count, size, length, seed))
            singles = [
                _run_single(instance, layout, feeds, count) for feeds, count in zip(requests, rows)
            ]
        except Exception as error:
            failure = error
            continue
        return size, requests, singles
    raise NotRunnable(f"it cannot be run with random feeds: {one_line(failure)}")


def _run_contrasting(
    instance: Instance, layout: BatchLayout, rows: int, size: int, kind: str
) -> tuple[Feeds, dict[str, Array]] | None:
    """A request of a kind and its answer; short, if it is not large. None: the model takes none."""
    for length in (size,) if kind == LARGE else (max(1, size // 8), size):
        try:
            feeds = _request(instance, layout, rows, size, length, 0, kind)
            return feeds, _run_single(instance, layout, feeds, rows)
        except Exception:
            continue
    return None


def _request(
    instance: Instance,
    layout: BatchLayout,
    rows: int,
    size: int,
    length: int,
    seed: int,
    kind: str = PLAIN,
) -> dict[str, Array]:
    """A random request with the masks that the server fills."""
    specs = {spec.name: spec for spec in instance.inputs}
    given = [
        spec for name, spec in specs.items() if name not in layout.masks and not spec.has_default
    ]
    lengths = _lengths(layout, specs, length)
    feeds = random_feeds(given, layout.axes, rows, size, lengths, seed, kind)
    layout.fill_masks(feeds)
    return feeds


def _run_single(
    instance: Instance, layout: BatchLayout, feeds: Feeds, rows: int
) -> dict[str, Array]:
    """The answer to one request without padding, unless the model takes no other shape."""
    specs = {spec.name: spec for spec in instance.inputs}
    free = {n: p for n, p in layout.padded.items() if specs[n].shape[p.axis] == -1}
    is_free = all(
        specs[name].shape[layout.axes[name]] == -1 for name in feeds if name in layout.axes
    )
    if is_free and len(free) == len(layout.padded):
        return instance.run(feeds)
    outputs = instance.run(join_feeds(layout, [feeds], [rows]))
    return split_outputs(layout, outputs, [feeds], [rows])[0]


def _lengths(layout: BatchLayout, specs: Mapping[str, TensorSpec], length: int) -> dict[str, int]:
    """The length of the padded axes, by their names and by their places."""
    found = {}
    for name, padded in layout.padded.items():
        found[f"{name}:{padded.axis}"] = length
        if axis_name := _axis_name(specs[name], padded.axis):
            found[axis_name] = length
    return found


def _axis_name(spec: TensorSpec, axis: int) -> str:
    return spec.axes[axis] if axis < len(spec.axes) else ""


def _draw(
    random: np.random.Generator, dtype: np.dtype[np.generic], shape: list[int], kind: str
) -> Array:
    if dtype == np.object_:
        # of different lengths: a tokenizer pads texts to the longest one of a batch
        most = {PLAIN: 8, ZERO: 0, LARGE: _LARGE_TEXT}[kind]
        counts = random.integers(min(1, most), most + 1, shape).reshape(-1).tolist()
        texts = np.array([" ".join("a" * count) for count in counts], dtype)
        return texts.reshape(shape)
    if kind == ZERO:
        return np.zeros(shape, dtype)
    if dtype.kind in "iub":
        if kind == PLAIN:
            return random.integers(0, 2, shape).astype(dtype)
        # integers of 32 and 64 bits may be indices, and a model may have no more than two rows
        is_small = dtype.kind != "b" and dtype.itemsize < 4
        return np.full(shape, _LARGE_FACTOR if is_small else 1, dtype)
    factor = _LARGE_FACTOR if kind == LARGE else 1
    return (random.normal(size=shape) * factor).astype(dtype)


def _compare_joined(
    instance: Instance,
    layout: BatchLayout,
    rows: Sequence[int],
    requests: Sequence[Feeds],
    singles: Sequence[Mapping[str, Array]],
    usual: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Why joined requests give other answers than `singles`; empty if they do not."""
    try:
        outputs = instance.run(join_feeds(layout, requests, rows))
        joined = split_outputs(layout, outputs, requests, rows)
    except Exception as error:
        return f"joined requests cannot be run: {one_line(error)}"
    for single, answer in zip(singles, joined):
        if reason := _compare(single, answer, usual):
            return f"joining requests changes answers: {reason}"
    return ""


def _compare(
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    usual: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """How answers differ. `usual`: the largest elements of a plain answer.

    The answer to zeros may be nothing but rounding: it is compared with the size of a plain one.
    """
    for name, a in expected.items():
        b = found[name]
        if a.shape != b.shape:
            return f"output {name!r} has the shape {list(b.shape)} instead of {list(a.shape)}"
        if a.dtype.name not in _TOLERANCE:
            if not np.array_equal(a, b):
                return f"output {name!r} is different"
            continue
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        scale = max(1e-6, _scale(a), usual.get(name, 0.0))
        limit = _TOLERANCE[a.dtype.name] * scale
        if not np.allclose(wide_a, wide_b, rtol=0, atol=limit, equal_nan=True):
            with np.errstate(invalid="ignore"):
                worst = np.nanmax(np.abs(wide_a - wide_b), initial=0.0)
            return (
                f"output {name!r} differs by {worst:.3g}, where its largest element is {scale:.3g}"
            )
    return ""


def _scale(array: Array) -> float:
    """The largest finite element; 0 of what is no float."""
    if array.dtype.name not in _TOLERANCE:
        return 0.0
    wide = np.abs(array.astype(np.float64))
    return float(np.max(wide, where=np.isfinite(wide), initial=0.0))
