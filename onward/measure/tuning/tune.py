"""Tune: measure which way to run a model is the fastest on this machine, and cache the result.

Every candidate opens the model in a separate process, must compute what onnxruntime computes, and
is timed on the real shapes; the fastest few then take turns in a final. The result is cached on
disk by model, shapes, machine and versions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import OptionError, ProviderError, ProviderMissing
from onward.graph.paths import check_writable, make_folder
from onward.lazy import LazyModule
from onward.measure.machine import (
    cache_folder,
    digest,
    machine,
    read_record,
    versions,
    write_record,
)
from onward.measure.tuning.trials import CallTimes, Candidate, Trial
from onward.providers.choose import INDUCTOR, OPENVINO, TORCH, available, full_name, install_hint

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.workers import model_transfer
else:  # it loads onnx
    model_transfer = LazyModule("onward.workers.model_transfer")

CPU = "CPUExecutionProvider"
ROUNDS = 4  # turns that the finalists take
FINALISTS = 3
MAX_RATIO = 1.5  # to the fastest: slower candidates do not reach the final
TOO_SLOW = 5.0  # torch this many times slower than the fastest: Inductor is not tried
TIE = 1.02  # within this ratio, the candidate listed first wins: results stay stable
_TOLERANCES = {"f32": 1e-3, "bf16": 5e-2, "f16": 5e-2}  # of an output's largest element

Progress = Callable[[int, int, str], None]  # number done, total, current candidate
Finished = Callable[["Row"], None]  # a candidate's figures, when it has been measured


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """How `providers="auto"` measures: `providers=[("auto", {"seconds": 1.0})]`."""

    seconds: float = 0.4  # of each measurement of a candidate
    precision: str = "f32"  # "f16" or "bf16": candidates may compute in lower precision
    providers: Sequence[str] | None = None  # None: all of this machine
    folder: str | None = None  # of cached results; None: in the user's cache
    fresh: bool = False  # measure even if there is a cached result
    threads: int = 0  # 0: several counts are tried
    limit: float = 120.0  # seconds that a candidate may take to open, or to be measured once

    def __post_init__(self) -> None:
        if self.precision not in _TOLERANCES:
            raise OptionError(
                f"precision must be one of {', '.join(_TOLERANCES)}, not {self.precision!r}"
            )
        for name in ("seconds", "limit"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be a time above 0, not {getattr(self, name)}")
        if self.providers is not None:
            object.__setattr__(
                self, "providers", [_available_provider(name) for name in self.providers]
            )


def _available_provider(text: str) -> str:
    """The full name of a provider of this machine."""
    name = full_name(text)
    if name not in available():
        raise ProviderMissing(f"auto cannot try {name}: not on this machine\n{install_hint(name)}")
    return name


@dataclass(frozen=True)
class Row:
    """A candidate's figures; `error` says why it was excluded."""

    candidate: Candidate
    median: float = 0.0
    p99: float = 0.0
    first: float = 0.0  # seconds to the first result
    memory: int = 0
    error: str = ""


@dataclass(frozen=True)
class TuningResult:
    """Every candidate's figures, the best one first, and the shapes they were measured on."""

    rows: list[Row]
    shapes: dict[str, list[int]]
    measured: str = ""  # the date
    circumstances: dict[str, Any] = field(default_factory=dict)
    kept: bool = True  # whether it was cached

    def best(self, shapes: Mapping[str, Sequence[int]]) -> Candidate:
        """The fastest for these shapes: code compiled for others would be compiled again."""
        exact = {name: list(shape) for name, shape in shapes.items()} == self.shapes
        for row in self.rows:
            if not row.error and (exact or row.candidate.provider != INDUCTOR):
                return row.candidate
        return Candidate(CPU)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TuningResult:
        rows = [
            Row(**{**row, "candidate": Candidate(**row["candidate"])}) for row in record["rows"]
        ]
        return cls(rows, record["shapes"], record["measured"], record["circumstances"])


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
    progress: Progress | None = None,
    finished: Finished | None = None,
    must_keep: bool = False,
) -> TuningResult:
    """The result for a model on feeds of these shapes: from the cache, or measured and cached.

    `progress` gets the candidate that is tried next, `finished` each one's figures. `must_keep`
    refuses a folder that cannot be written to before anything is measured.
    """
    shapes = {name: list(np.shape(feed)) for name, feed in feeds.items()}
    with model_transfer.model_file(source) as path:
        place = _cache_file(path, feeds, options, dict(settings or {}))
        record = None if options.fresh else read_record(place)
        if record is not None:
            return TuningResult.from_json(record)
        if must_keep:
            make_folder(place.parent)
            check_writable(place)
        more = {"weights": weights, "settings": settings}
        callbacks = (progress or (lambda *_: None), finished or (lambda _: None))
        rows = _measure(path, feeds, options, more, callbacks)
    circumstances = {"machine": machine(), "versions": versions()}
    result = TuningResult(rows, shapes, time.strftime("%Y-%m-%d"), circumstances)
    if any(not row.error for row in rows):
        return replace(result, kept=write_record(place, result.to_json()))
    return result


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
    folder = Path(options.folder) if options.folder else cache_folder("tuning")
    return folder / f"{digest(model, kinds, machine(), versions(), asked)}.json"


def _measure(
    path: Path,
    feeds: Mapping[str, Any],
    options: TuningOptions,
    more: Mapping[str, Any],
    callbacks: tuple[Progress, Finished],
) -> list[Row]:
    """Measure every candidate once, and the fastest ones several times in turns."""
    progress, finished = callbacks
    listed = candidates(options, machine()["cores"])
    expected: list[Any] | None = None
    rows: dict[Candidate, Row] = {}
    racing: dict[Candidate, tuple[Trial, list[float]]] = {}
    with ExitStack() as trials:
        for number, candidate in enumerate(listed):
            progress(number, len(listed) + 1, str(candidate))
            if _is_too_slow(candidate, rows.values()):
                rows[candidate] = Row(candidate, error="not tried: torch is much slower")
                finished(rows[candidate])
                continue
            trial = trials.enter_context(Trial(path, candidate, feeds, **more))
            try:
                opening = trial.open(timeout=options.limit)
                expected = opening.outputs if expected is None else expected
                _check_same(opening.outputs, expected, _TOLERANCES[options.precision])
                trial.measure(options.seconds / 4, timeout=options.limit)  # warm
                timing = trial.measure(options.seconds, timeout=options.limit)
            except (ProviderError, OptionError) as error:
                rows[candidate] = Row(candidate, error=str(error).splitlines()[0])
                finished(rows[candidate])
                trial.close()
                continue
            rows[candidate] = _row(candidate, opening.seconds, timing, timing.times)
            finished(rows[candidate])
            racing[candidate] = (trial, list(timing.times))
            _drop_the_slow(racing)
        progress(len(listed), len(listed) + 1, "the final")
        _final(racing, rows, options)
    return _ranked(rows, listed)


def _row(candidate: Candidate, first: float, timing: CallTimes, times: Sequence[float]) -> Row:
    whole = CallTimes(list(times), timing.memory)
    return Row(candidate, whole.median, whole.p99, first, whole.memory)


def _is_too_slow(candidate: Candidate, rows: Any) -> bool:
    """Whether a candidate is Inductor, which compiles for long, and torch itself is much slower."""
    done = {row.candidate.provider: row.median for row in rows if not row.error}
    return (
        candidate.provider == INDUCTOR
        and TORCH in done
        and done[TORCH] > TOO_SLOW * min(done.values())
    )


def _drop_the_slow(racing: dict[Candidate, tuple[Trial, list[float]]]) -> None:
    """Close all trials but the fastest few: their processes take memory."""
    order = sorted(racing, key=lambda candidate: float(np.median(racing[candidate][1])))
    best = float(np.median(racing[order[0]][1]))
    for place, candidate in enumerate(order):
        if place >= FINALISTS or np.median(racing[candidate][1]) > MAX_RATIO * best:
            racing.pop(candidate)[0].close()


def _final(
    racing: dict[Candidate, tuple[Trial, list[float]]],
    rows: dict[Candidate, Row],
    options: TuningOptions,
) -> None:
    """Measure the finalists in turns; a single one has won already."""
    for _ in range(ROUNDS if len(racing) > 1 else 0):
        for candidate, (trial, times) in racing.items():
            try:
                timing = trial.measure(options.seconds, timeout=options.limit)
            except ProviderError as error:
                rows[candidate] = Row(candidate, error=str(error).splitlines()[0])
                continue
            times += timing.times
            rows[candidate] = _row(candidate, rows[candidate].first, timing, times)


def _ranked(rows: Mapping[Candidate, Row], listed: Sequence[Candidate]) -> list[Row]:
    """The best first: of those that tie with the fastest, the one listed first."""
    good = sorted((row for row in rows.values() if not row.error), key=lambda row: row.median)
    bad = [row for row in rows.values() if row.error]
    if good:
        ties = [row for row in good if row.median <= TIE * good[0].median]
        best = min(ties, key=lambda row: listed.index(row.candidate))
        good.remove(best)
        good.insert(0, best)
    return [*good, *bad]


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
