"""Quality: how far a changed model's outputs are from the original's, and a user's metric.

judge = Judge(original, calibration, metric="accuracy")
judge.rate(changed).similarity      # 1: equal outputs
judge.is_within(judge.rate(changed), drop=0.01)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.compress.calibration import Array, Calibration
from onward.errors import DataError, MetricError, OnwardError, OptionError, ProviderError
from onward.message_text import first_line, format_sizes
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.runner.metrics.make_metric import make_metric
from onward.runner.metrics.metric import Metric
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

Run = Callable[[Mapping[str, Any]], dict[str, Any]]  # feeds to outputs by name
OwnMetric = Callable[
    [Run], float
]  # a user's: it runs the model on data of its own; higher is better

_ROWS_KEPT = 4096  # rows of the original's outputs that are kept in memory to compare with
_BYTES_KEPT = 256 << 20  # and their bytes at most
_NUMBERS = "fiu"  # kinds of numpy's types


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How a model's outputs compare with the original's on the same data.

    Labels are texts, booleans and integers of 32 and 64 bits: classes, indices, tokens. How far two
    of them are from each other says nothing; they are equal or not.

    Attributes:
        similarity: the mean over rows of the cosine of its outputs with the original's; of several
            outputs the lowest. A row is what the first axis counts. The cosine of single numbers
            is their sign: where a row is one float, it is the cosine over all rows, of what they
            are above the original's mean. Of labels it is the share of equal ones
        error: |y - y'| / |y|, the norms over all data; of labels the share of those that differ;
            of several outputs the largest
        agreement: the share of equal labels, and of rows with the same largest element along the
            last axis; None where an output is neither labels nor a table of scores
        metric: the user's metric; None if there is none
    """

    similarity: float
    error: float
    agreement: float | None = None
    metric: float | None = None

    @property
    def is_nan(self) -> bool:
        """Whether outputs became NaN or infinite where the original's are numbers."""
        return math.isnan(self.similarity) or math.isnan(self.error)


class Judge:
    """Rates models against an original, which runs once."""

    def __init__(
        self,
        original: Source,
        calibration: Calibration,
        *,
        metric: str | Metric | OwnMetric | None = None,
        providers: Asked = None,
    ) -> None:
        self._calibration, self._providers = calibration, providers
        self._metric = read_metric(metric)
        if self._metric is not None and not callable(self._metric):
            first = next(calibration.labelled_batches())
            if first[1] is None:
                raise OptionError(
                    f"the metric {self._metric.name!r} compares outputs with targets, and the data "
                    "has none\ngive target=, the name of the column that holds them"
                )
        session = self._open(original)
        self._names = [output.name for output in session.get_outputs()]
        self._expected: list[list[Array]] = []
        rows = kept = 0
        for feeds in calibration.batches():
            outputs = self._run_original(session, feeds)
            self._expected.append(outputs)
            rows += max((len(y) for y in outputs if y.ndim), default=1)
            kept += sum(y.nbytes for y in outputs)
            if rows >= _ROWS_KEPT or kept >= _BYTES_KEPT:
                break
        if self._metric is None:  # another run would show nothing
            self.original = rate_outputs([(each, each) for each in self._expected[:1]])
        else:
            self.original = self.rate(original)

    def _run_original(self, session: InferenceSession, feeds: Mapping[str, Any]) -> list[Array]:
        try:
            return [as_array(y) for y in session.run(self._names, feeds)]
        except ProviderError as error:
            if not self._calibration.is_random:
                raise
            sizes = "; ".join(f"{name}: {format_sizes(np.shape(x))}" for name, x in feeds.items())
            raise DataError(
                f"the model does not run on random numbers ({sizes}): {first_line(error)}\n"
                "give data, or sizes of its dynamic dimensions (--size NAME=NUMBER)"
            ) from error

    @property
    def metric_name(self) -> str | None:
        """The name of the user's metric, for reports."""
        if self._metric is None:
            return None
        called = getattr(self._metric, "__name__", type(self._metric).__name__)
        return str(getattr(self._metric, "name", called))

    def rate(self, model: Source) -> Quality:
        """Run a model on the data and compare its outputs with the original's."""
        session = self._open(model)
        sums = [_Sums() for _ in self._names]
        for feeds, expected in zip(self._calibration.batches(), self._expected, strict=False):
            for each, y, z in zip(sums, expected, session.run(self._names, feeds), strict=True):
                each.add(y, z)
        return _worst(sums, self._measure_metric(session))

    def is_within(self, quality: Quality, drop: float) -> bool:
        """Whether no more than this share of the original's quality is lost.

        With a metric: a share of its value (0.01: 99 % of it are left). Without one:
        1 - `similarity` may be `drop` at most.
        """
        if not math.isfinite(quality.similarity) or not math.isfinite(quality.error):
            return False
        if quality.metric is None or self.original.metric is None:
            return 1 - quality.similarity <= drop
        before, after = self.original.metric, quality.metric
        lost = before - after if self._higher_is_better() else after - before
        return lost <= drop * abs(before) + 1e-12

    def _higher_is_better(self) -> bool:
        return bool(getattr(self._metric, "higher_is_better", True))

    def _measure_metric(self, session: InferenceSession) -> float | None:
        metric = self._metric
        if metric is None:
            return None
        if callable(metric):
            return _call_metric(metric, lambda feeds: _run_by_name(session, self._names, feeds))
        metric.reset()
        for feeds, targets in self._calibration.labelled_batches():
            outputs = session.run(self._names[:1], feeds)[0]
            try:
                metric.update(outputs, targets)
            except OnwardError:
                raise
            except Exception as error:  # a user's class, or targets of another shape
                raise MetricError(
                    f"the metric {metric.name!r} raised {type(error).__name__}: {error}\n"
                    f"it got outputs {np.shape(outputs)} and targets {np.shape(targets)}"
                ) from error
        return metric.result()

    def _open(self, model: Source) -> InferenceSession:
        return InferenceSession(model, SessionOptions(log_severity_level=4), self._providers)


def read_metric(given: str | Metric | OwnMetric | None) -> Metric | OwnMetric | None:
    """A metric by its name, or the user's own; refused if it is none."""
    metric = make_metric(given) if isinstance(given, str) else given
    if isinstance(metric, type):
        raise OptionError(
            f"the metric is the class {metric.__name__}, not an object of it\n"
            f"give {metric.__name__}()"
        )
    has_methods = all(hasattr(metric, name) for name in ("name", "reset", "update", "result"))
    if metric is not None and not callable(metric) and not has_methods:
        raise OptionError(
            f"the metric is of type {type(metric).__name__}\n"
            "give a name such as 'accuracy', a Metric, or a function that gets a function which "
            "runs the model, and returns a number"
        )
    if callable(metric):
        _check_takes_one(metric)
    return metric


def _check_takes_one(metric: OwnMetric) -> None:
    """Refuse a function that cannot be called with one argument: (outputs, targets) and others."""
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):  # of C, without one
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(metric, "__name__", type(metric).__name__)
        raise OptionError(
            f"the metric {name}{signature} must take one argument\n"
            "it gets a function that runs the model, feeds to outputs by name, and returns a number"
        ) from error


def _run_by_name(
    session: InferenceSession, names: Sequence[str], feeds: Mapping[str, Any]
) -> dict[str, Any]:
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))


def _call_metric(metric: OwnMetric, run: Run) -> float:
    try:
        given = metric(run)
    except Exception as error:  # the user's code
        raise MetricError(
            f"the metric raised {type(error).__name__}: {error}\n"
            "it is called with a function that runs the model: feeds to outputs by name"
        ) from error
    try:
        number = float(given)
    except (TypeError, ValueError) as error:
        kind = "None" if given is None else f"a {type(given).__name__}"
        raise MetricError(
            f"the metric returned {kind}, not a number\nreturn what is to be kept high"
        ) from error
    if not math.isfinite(number):
        raise MetricError(f"the metric returned {number}, not a finite number")
    return number


class _Sums:
    """Running sums of one output's comparison."""

    def __init__(self) -> None:
        self._cosines = self._rows = self._equal = self._choices = 0.0
        self._squares = self._distances = 0.0
        self._is_single, self._total, self._other_total = True, 0.0, 0.0
        self._products = self._other_squares = 0.0
        self._labels = self._same_labels = 0.0

    def add(self, y: Any, z: Any) -> None:
        """Add an output of the original and of the other model on the same feeds."""
        y, z = as_array(y), as_array(z)
        if y.dtype.kind not in _NUMBERS or (y.dtype.kind != "f" and y.dtype.itemsize >= 4):
            self._add_labels(y, z)
        else:
            self._add_numbers(y, z)

    def _add_labels(self, y: Array, z: Array) -> None:
        if np.shape(z) == y.shape:
            self._labels += y.size
            self._same_labels += int(np.count_nonzero(np.asarray(y == z)))
        else:  # such as another number of found boxes: nothing is alike
            self._labels += max(y.size, 1)

    def _add_numbers(self, y: Array, z: Array) -> None:
        a = np.asarray(y, np.float64).reshape(len(y) if y.ndim else 1, -1 if y.size else 0)
        if np.shape(z) != y.shape or z.dtype.kind not in _NUMBERS:
            self._rows, self._is_single = self._rows + max(len(a), 1), False
            self._squares += float(np.nansum(a * a))
            self._distances += float(np.nansum(a * a))
            return
        if not y.size:
            return
        b = np.asarray(z, np.float64).reshape(a.shape)
        finite = np.isfinite(a)
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        equal = (a == b).all(axis=1)
        dots = (a * b).sum(axis=1)
        cosines = np.where(equal, 1.0, dots / np.where(lengths, lengths, 1.0))
        self._cosines, self._rows = self._cosines + float(cosines.sum()), self._rows + len(a)
        self._squares += float((a * a).sum())
        self._distances += float(((a - b) ** 2).sum())
        self._is_single &= y.dtype.kind == "f" and a.shape[1] == 1
        self._total += float(a.sum())
        self._other_total += float(b.sum())
        self._products += float(dots.sum())
        self._other_squares += float((b * b).sum())
        if y.dtype.kind == "f" and y.ndim >= 2 and y.shape[-1] > 1:
            same = np.argmax(y, -1) == np.argmax(z, -1)
            self._equal, self._choices = self._equal + float(same.sum()), self._choices + same.size

    @property
    def similarity(self) -> float:
        if self._labels:
            return self._same_labels / self._labels
        if self._is_single and self._rows:
            return self._similarity_of_numbers()
        return self._cosines / self._rows if self._rows else 1.0

    def _similarity_of_numbers(self) -> float:
        """The cosine of (a - m) and (b - m) over all rows, with m the mean of a."""
        if not self._distances:
            return 1.0
        mean = self._total / self._rows
        spread = self._squares - mean * self._total
        if spread <= 1e-12 * self._squares:  # one row, or equal ones
            return max(1 - self.error, 0.0)
        other = self._other_squares - mean * (2 * self._other_total - self._total)
        product = self._products - mean * self._other_total
        return product / math.sqrt(spread * other) if other > 0 else 0.0

    @property
    def error(self) -> float:
        if self._labels:
            return 1 - self._same_labels / self._labels
        if not self._distances:
            return 0.0
        return math.sqrt(self._distances / self._squares) if self._squares else math.inf

    @property
    def agreement(self) -> float | None:
        if self._labels:
            return self._same_labels / self._labels
        return self._equal / self._choices if self._choices else None


def as_array(output: Any) -> Array:
    """An output as one array: sequences of tensors and of maps (class to score) too."""
    if output is None:  # an optional that is empty
        return np.zeros(0, np.float32)
    if isinstance(output, Mapping):
        return as_array([output])
    if isinstance(output, list):
        rows = [list(x.values()) if isinstance(x, Mapping) else as_array(x) for x in output]
        if len({np.shape(row) for row in rows}) == 1:
            return np.array(rows)
        parts = [np.ravel(row) for row in rows]
        return np.concatenate(parts)[None] if parts else np.zeros(0, np.float32)
    array = np.asarray(output)
    return array.astype(np.float32) if array.dtype.kind == "V" else array  # such as bfloat16


def rate_outputs(pairs: Iterable[tuple[Sequence[Array], Sequence[Array]]]) -> Quality:
    """Compare outputs with those that are expected, batch by batch: (expected, outputs)."""
    sums: list[_Sums] = []
    for expected, outputs in pairs:
        sums = sums or [_Sums() for _ in expected]
        for each, y, z in zip(sums, expected, outputs, strict=True):
            each.add(y, z)
    return _worst(sums)


def _worst(sums: Sequence[_Sums], metric: float | None = None) -> Quality:
    """The quality of the output that is least like the original's; NaN if one of them is NaN."""
    agreements = [each.agreement for each in sums if each.agreement is not None]
    return Quality(
        similarity=float(np.min([1.0, *(each.similarity for each in sums)])),
        error=float(np.max([0.0, *(each.error for each in sums)])),
        agreement=min(agreements, default=None),
        metric=metric,
    )
