"""Tune: measure which way to run a model is the fastest on this machine, and cache the result.

Every candidate opens the model in a separate process, must compute what onnxruntime computes, and
is timed on the real shapes; the fastest few then take turns in a final. The result is cached on
disk by model, shapes, machine and versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import ProviderError
from onward.graph.paths import check_writable, make_folder
from onward.lazy import LazyModule
from onward.measure.machine import digest, machine, versions
from onward.measure.tuning.race import Finished, Progress, race
from onward.measure.tuning.trials import Candidate, Trial
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import (
    CPU,
    Row,
    TuningResult,
    keep_result,
    read_result,
)
from onward.providers.choose import INDUCTOR, OPENVINO, available

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.workers import model_transfer
else:  # it loads onnx
    model_transfer = LazyModule("onward.workers.model_transfer")

_TOLERANCES = {"f32": 1e-3, "bf16": 5e-2, "f16": 5e-2}  # of an output's largest element


def candidates(options: TuningOptions, cores: int) -> list[Candidate]:
    """The ways to run a model on this machine, the most reliable first."""
    here = [name for name in available() if options.providers is None or name in options.providers]
    counts = [options.threads] if options.threads else [0, *_counts_below(cores)]
    less: dict[str, Any] = {} if options.precision == "f32" else {"precision": options.precision}
    found = []
    for name in here:
        if name == CPU:
            found += [Candidate(name, threads) for threads in counts]
            found += [Candidate(name, counts[0], own_passes=True)]
        elif name == INDUCTOR:
            found.append(Candidate(name, options.threads, {"dynamic": False}))
        elif name == OPENVINO:
            found.append(Candidate(name, options.threads))
            found += [Candidate(name, options.threads, less)] if less else []
        elif name != "ReferenceExecutionProvider":
            found.append(Candidate(name, options.threads))
    return found


def _counts_below(cores: int) -> list[int]:
    """1, 2, 4, ... threads, fewer than there are cores."""
    return [1 << power for power in range(cores.bit_length()) if 1 << power < cores]


def tune(
    source: Source,
    feeds: Mapping[str, Any],
    options: TuningOptions,
    *,
    weights: Any = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = lambda *_: None,
    finished: Finished = lambda _: None,
    must_keep: bool = False,
) -> TuningResult:
    """The result for a model on feeds of these shapes: from the cache, or measured and cached.

    `progress` gets the candidate that is tried next, `finished` each one's figures. `must_keep`
    refuses a folder that cannot be written to before anything is measured.
    """
    shapes = {name: list(np.shape(feed)) for name, feed in feeds.items()}
    with model_transfer.model_file(source) as path:
        place = _cache_file(path, feeds, options, dict(settings or {}))
        found = None if options.fresh else read_result(place)
        if found is not None:
            return found
        if must_keep:
            make_folder(place.parent)
            check_writable(place)
        rows = race(
            candidates(options, machine()["cores"]),
            lambda candidate: Trial(path, candidate, feeds, weights=weights, settings=settings),
            lambda ours, theirs: _check_same(ours, theirs, _TOLERANCES[options.precision]),
            options,
            progress,
            finished,
        )
    return keep_result(rows, shapes, place)


def store_choice(source: Source, feeds: Mapping[str, Any], rows: Sequence[Row]) -> TuningResult:
    """Cache figures that were measured elsewhere: sessions with providers="auto" then use them.

    The best row comes first. The options are those of a session that names none.
    """
    shapes = {name: list(np.shape(feed)) for name, feed in feeds.items()}
    with model_transfer.model_file(source) as path:
        place = _cache_file(path, feeds, TuningOptions(), {})
    return keep_result(list(rows), shapes, place)


def bucket(shape: Sequence[int]) -> list[int]:
    """Sizes rounded up to a power of two: similar shapes share a result."""
    return [1 << max(0, int(size) - 1).bit_length() if size else 0 for size in shape]


def _cache_file(
    path: Path, feeds: Mapping[str, Any], options: TuningOptions, settings: dict[str, Any]
) -> Path:
    """The cache file of a result. Weights are no part of its name: they do not change the speed."""
    with path.open("rb") as file:
        model = hashlib.file_digest(file, "sha256").hexdigest()
    kinds = {n: [str(np.asarray(f).dtype), bucket(np.shape(f))] for n, f in feeds.items()}
    among = sorted(options.providers or available())
    asked = [options.precision, options.threads, among, settings]
    return options.cache_folder / f"{digest(model, kinds, machine(), versions(), asked)}.json"


def _check_same(results: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    """Refuse a candidate whose outputs differ."""
    for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise ProviderError(f"output {number} has another shape or type")
        if theirs.dtype.kind in "OUSbiu":
            same = bool(np.array_equal(ours, theirs))
        else:
            a, b = np.asarray(ours, np.complex128), np.asarray(theirs, np.complex128)
            scale = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
            same = np.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)
        if not same:
            raise ProviderError(f"output {number} differs from onnxruntime's")
