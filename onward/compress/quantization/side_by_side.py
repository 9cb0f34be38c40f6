"""Quantize to several formats for several providers, measure them side by side, and choose one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quality import Quality
from onward.compress.quantization.quantize_settings import QuantizeSettings
from onward.compress.quantization.subject import Subject
from onward.compress.report import Measured, Report
from onward.compress.timing import time_in_turns
from onward.errors import OnwardError
from onward.formatting import show_bytes, show_seconds
from onward.graph.files import saved_bytes
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tune import store_choice
from onward.measure.tuning.tuning_result import Row
from onward.message_text import first_line
from onward.providers.choose import OPENVINO, available
from onward.providers.provider_names import AUTO, short_name

_CPU = "CPUExecutionProvider"
_FORMATS = ("int8", "int4")  # what "auto" tries in addition to float
_CLOSE = 1.03  # of two models that differ less in time, the smaller one is chosen

QuantizeOne = Callable[[Subject, QuantizeSettings, Progress], Report]


@dataclass(frozen=True)
class FormatCandidate:
    """A model in one format on one provider, measured together with the others.

    Attributes:
        format: "float32", "int8", ...
        provider: the full name of the provider that ran it
        file_bytes: the size of its file
        seconds: the median time of a run
        quality: its outputs compared with the original's
        is_within: whether it keeps the budget
        is_best_trade: no other candidate is at least as small, as fast and as exact
    """

    format: str
    provider: str
    file_bytes: int
    seconds: float
    quality: Quality
    is_within: bool
    is_best_trade: bool = False


def choose_candidate(
    subject: Subject, settings: QuantizeSettings, quantize_one: QuantizeOne, progress: Progress
) -> Report:
    """The report of the fastest candidate within the budget; a table of all in its details."""
    reports, failed = dict[tuple[str, str], Report](), list[str]()
    for form, provider in _asked(settings):
        one = replace(settings, to=form, provider=provider)
        progress(f"{form} for {short_name(provider)}", len(reports), None)
        try:
            reports[form, provider] = quantize_one(
                replace(subject, provider=provider, with_memory=False), one, progress
            )
        except OnwardError as error:
            failed.append(f"{form} on {short_name(provider)} failed: {first_line(error)}")
    models: dict[tuple[str, str], ir.Model] = {
        key: report.model for key, report in reports.items() if report.helped
    }
    models |= {("float32", provider): subject.model for provider in _providers(settings)}
    candidates = list(_mark_trades(_measure(subject, settings, models, progress)))
    return _report(subject, candidates, models, reports, failed)


def _asked(settings: QuantizeSettings) -> Iterator[tuple[str, str]]:
    for form in _FORMATS if settings.to == "auto" else (settings.to,):
        for provider in _providers(settings):
            yield form, provider


def _providers(settings: QuantizeSettings) -> list[str]:
    if settings.provider != AUTO:
        return [settings.provider]
    return [_CPU, *([OPENVINO] if OPENVINO in available() else [])]


def _measure(
    subject: Subject,
    settings: QuantizeSettings,
    models: Mapping[tuple[str, str], ir.Model],
    progress: Progress,
) -> Iterator[FormatCandidate]:
    """Time all models in turns, each on its provider, and rate them."""
    progress("timing all candidates side by side", 0, None)
    names = {f"{form} {provider}": (form, provider) for form, provider in models}
    times = time_in_turns(
        {name: models[key] for name, key in names.items()},
        subject.feeds,
        providers={name: [provider] for name, (_, provider) in names.items()},
    )
    judges = {provider: replace(subject, provider=provider).judge for _, provider in models}
    for name, (form, provider) in names.items():
        judge = judges[provider]
        quality = judge.rate(models[form, provider])
        within = form == "float32" or judge.is_within(quality, settings.drop)
        size = subject.bytes if form == "float32" else saved_bytes(models[form, provider])
        yield FormatCandidate(form, provider, size, times[name], quality, within)


def _mark_trades(candidates: Iterator[FormatCandidate]) -> Iterator[FormatCandidate]:
    """The candidates, marked where no other one is better in one respect and no worse in all."""
    everyone = list(candidates)
    figures = [(each.file_bytes, each.seconds, each.quality.error) for each in everyone]
    for mine, each in zip(figures, everyone):
        beaten = any(
            other != mine and all(a <= b for a, b in zip(other, mine)) for other in figures
        )
        yield replace(each, is_best_trade=not beaten)


def choose_best(candidates: Sequence[FormatCandidate]) -> FormatCandidate:
    """The fastest within the budget; of those that are about as fast, the smallest."""
    allowed = [each for each in candidates if each.is_within]
    fastest = min(each.seconds for each in allowed)
    close = [each for each in allowed if each.seconds <= _CLOSE * fastest]
    return min(close, key=lambda each: (each.file_bytes, each.seconds))


def _report(
    subject: Subject,
    candidates: Sequence[FormatCandidate],
    models: Mapping[tuple[str, str], ir.Model],
    reports: Mapping[tuple[str, str], Report],
    failed: Sequence[str],
) -> Report:
    chosen = choose_best(candidates)
    key = (chosen.format, chosen.provider)
    slowest = next(each for each in candidates if each.format == "float32")
    own = reports.get(key)
    before = subject_figures(subject, slowest)
    after = replace(
        subject_figures(subject, chosen),
        memory=replace(subject, provider=chosen.provider).measure_memory(models[key]),
    )
    helped = chosen != slowest
    notes = [f"chosen: {chosen.format} on {short_name(chosen.provider)}"]
    notes += [] if helped else [f"nothing helped: float on {short_name(chosen.provider)} is best"]
    notes += [*(own.notes if own is not None else ()), *failed, *candidate_lines(candidates)]
    return Report(
        task="quantize",
        model=models[key] if own is not None else subject.copy(),
        helped=helped,
        before=before,
        after=after,
        changes=own.changes if own is not None else [],
        notes=notes,
        metric_name=None if own is None else own.metric_name,
        details={
            **(own.details if own is not None else {}),
            "chosen": {"format": chosen.format, "provider": chosen.provider},
            "candidates": [asdict(each) for each in candidates],
        },
        after_saving=_storing(chosen, candidates, subject.feeds),
    )


def subject_figures(subject: Subject, candidate: FormatCandidate) -> Measured:
    """A candidate's figures for a report."""
    memory = subject.memory if candidate.format == "float32" else None
    return Measured(
        file_bytes=candidate.file_bytes,
        seconds=candidate.seconds,
        memory=memory,
        quality=candidate.quality,
    )


def candidate_lines(candidates: Sequence[FormatCandidate]) -> list[str]:
    """The candidates as a table of text, the fastest first; a star marks the best trades."""
    rows = [("format", "provider", "file", "latency", "error", "")]
    for each in sorted(candidates, key=lambda each: each.seconds):
        marks = ("*" if each.is_best_trade else "") + ("" if each.is_within else " over the budget")
        rows.append(
            (
                each.format,
                short_name(each.provider),
                show_bytes(each.file_bytes),
                show_seconds(each.seconds),
                f"{each.quality.error:.2%}",
                marks.strip(),
            )
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(w) for text, w in zip(row, widths)).rstrip() for row in rows]


def _storing(
    chosen: FormatCandidate, candidates: Sequence[FormatCandidate], feeds: Mapping[str, Any]
) -> Callable[[Path], None]:
    """A function that stores, for a saved model, the provider that `providers="auto"` then runs."""
    same = [each for each in candidates if each.format == chosen.format]
    same.sort(key=lambda each: (each.provider != chosen.provider, each.seconds))
    rows = [Row(Candidate(each.provider), each.seconds, each.seconds) for each in same]

    def store(path: Path) -> None:
        store_choice(path, feeds, rows)

    return store
