"""The report of a quantization: figures, each node, and sentences about what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onward.compress.quality import Quality
from onward.compress.quantization.plan_search import SLOWEST, PlanSearchResult
from onward.compress.quantization.quantization_plan import Plan, Quantizer
from onward.compress.quantization.quantize_settings import QuantizeSettings
from onward.compress.quantization.subject import Subject
from onward.compress.report import Change, Measured, Report
from onward.formatting import show_bytes
from onward.graph.int8_weights import marked_processors
from onward.providers.provider_names import short_name

_FEW = 8  # rows of data
_SAME = Quality(similarity=1.0, error=0.0)


def make_report(
    subject: Subject, settings: QuantizeSettings, quantizer: Quantizer, found: PlanSearchResult
) -> Report:
    """The report of what was found: the model, or the original if it did not help."""
    helped = found.helps(subject, settings)
    is_measured = found.quality is not None
    metric = subject.judge.original.metric if is_measured else None
    before = subject.figures(
        None if found.seconds is None else found.seconds[0],
        replace(_SAME, metric=metric) if is_measured else None,
    )
    figures = Measured(
        file_bytes=found.bytes,
        seconds=None if found.seconds is None else found.seconds[1],
        memory=subject.measure_memory(found.model) if is_measured else None,
        quality=found.quality,
    )
    rejected = None if helped or not found.plan else found.model
    return Report(
        task="quantize",
        model=found.model if helped else subject.copy(),
        helped=helped,
        before=before,
        after=figures if helped else before,
        changes=list(_changes(quantizer, found)),
        notes=[*_notes(subject, settings, found, helped), *_notes_of(quantizer, found.plan)],
        metric_name=subject.judge.metric_name if is_measured else None,
        details=_details(subject, settings, found),
        rejected=rejected,
        rejected_figures=None if rejected is None else figures,
    )


def report_nothing(
    subject: Subject, settings: QuantizeSettings, why: str, quantizer: Quantizer | None = None
) -> Report:
    """The report of a model with nothing to quantize."""
    figures = Measured(file_bytes=subject.bytes)
    empty = PlanSearchResult({}, subject.model, subject.bytes)
    return Report(
        task="quantize",
        model=subject.copy(),
        helped=False,
        before=figures,
        after=figures,
        changes=[] if quantizer is None else list(_changes(quantizer, empty)),
        notes=[f"nothing to do: {why}", *getattr(quantizer, "notes", ())],
        details=_details(subject, settings, empty),
    )


def _notes_of(quantizer: Quantizer, plan: Plan) -> Sequence[str]:
    """What a quantizer says about a plan, or about itself."""
    notes_for = getattr(quantizer, "notes_for", None)
    found: Sequence[str] = notes_for(plan) if notes_for else getattr(quantizer, "notes", ())
    return found


def _details(
    subject: Subject, settings: QuantizeSettings, found: PlanSearchResult
) -> dict[str, object]:
    return {
        "format": settings.to,
        "provider": subject.provider,
        "drop": settings.drop,
        "within_budget": found.is_within,
        "random_data": subject.calibration.is_random,
        "formats": dict(Counter(str(form) for form in found.plan.values())),
        "learned_rounding": found.tuned,
        "processors": marked_processors(found.model),
    }


def _changes(quantizer: Quantizer, found: PlanSearchResult) -> Iterator[Change]:
    """Each node with a format or a reason, in the order of the graph."""
    reasons = {**quantizer.refused, **found.undone}
    for node in ir.traversal.RecursiveGraphIterator(quantizer.model.graph):
        name = str(node.name)
        if name in found.plan:
            form = str(found.plan[name])
            yield Change(name=name, operator=node.op_type, format=form)
        elif name in reasons:
            yield Change(name=name, operator=node.op_type, format="unchanged", reason=reasons[name])


def _notes(
    subject: Subject, settings: QuantizeSettings, found: PlanSearchResult, helped: bool
) -> Iterator[str]:
    """Sentences about the outcome; the first one says whether it helped."""
    engine = short_name(subject.provider)
    if not helped:
        yield f"nothing helped: {_why_not(subject, settings, found, engine)}"
    formats = Counter(str(form) for form in found.plan.values())
    if formats:
        yield f"{_listed(formats)} of {_count(len(found.plan) + len(found.undone), 'node')}"
    for reason, count in Counter(found.undone.values()).items():
        yield f"{_count(count, 'node')} unchanged: {reason}"
    asked = int(settings.to.removeprefix("int")) if settings.is_for_size else 0
    if asked and settings.bits is None and settings.size is None:
        more = sum(form.bits > asked for form in found.plan.values())
        if more:
            yield f"{_count(more, 'node')} with more than {asked} bits: fewer lose too much"
    yield from found.notes
    if helped and not found.is_within and found.quality is not None:
        asked_for = "bits were" if settings.bits is not None else "a size was"
        lost = _lost(subject, found.quality)
        yield f"costs {lost}, more than {settings.drop:.2%} (drop): {asked_for} asked for"
    speedup = found.speedup
    if helped and speedup is not None and speedup < SLOWEST:
        yield (
            f"slower: {speedup:.2f} times as fast as float on {engine} at these shapes; "
            f"{settings.to} saves bytes, and time where one row is computed at once"
        )
    if subject.calibration.is_random:
        yield "measured on random numbers: give data to see what is lost on yours"
    elif found.quality is not None and (rows := _count_rows(subject, _FEW)) < _FEW:
        yield f"measured on {_count(rows, 'row')}, which it was fitted to: give some tens"
    if subject.is_large:
        yield f"speed and quality were not measured: the model has {show_bytes(subject.bytes)}"


def _count_rows(subject: Subject, most: int) -> int:
    """The rows of data, counted up to a number."""
    rows = 0
    for feeds in subject.calibration.batches():
        first = next((np.shape(feed) for feed in feeds.values() if np.ndim(feed)), (1,))
        rows += first[0]
        if rows >= most:
            break
    return rows


def _why_not(
    subject: Subject, settings: QuantizeSettings, found: PlanSearchResult, engine: str
) -> str:
    if not found.plan:
        reasons = Counter(found.undone.values()).most_common(1)
        return f"no node is better as {settings.to} on {engine}" + (
            f": {reasons[0][0]}" if reasons else ""
        )
    if found.quality is not None and found.quality.is_nan:
        return f"outputs are NaN or infinite in {settings.to}"
    if not found.is_within and found.quality is not None:
        lost, allowed = _lost(subject, found.quality), f"{settings.drop:.2%}"
        return f"{settings.to} loses {lost} where {allowed} is allowed (drop)"
    if settings.size is not None and found.bytes > settings.size:
        return (
            f"the smallest file found has {show_bytes(found.bytes)}, "
            f"and {show_bytes(settings.size)} is asked for (size)"
        )
    if settings.is_for_size and found.bytes >= subject.bytes:
        return (
            f"{settings.to} makes the file larger: {show_bytes(found.bytes)}, "
            f"from {show_bytes(subject.bytes)}"
        )
    speedup = found.speedup
    if speedup is not None and speedup < SLOWEST:
        return f"{settings.to} is {speedup:.2f} times as fast as float on {engine}"
    return f"{settings.to} is neither smaller nor faster than float on {engine}"


def _lost(subject: Subject, quality: Quality) -> str:
    before = subject.judge.original.metric
    if quality.metric is None or not before:
        return f"{1 - quality.similarity:.2%} of the outputs' similarity"
    return f"{abs(before - quality.metric) / abs(before):.2%} of the {subject.judge.metric_name}"


def _listed(formats: Counter[str]) -> str:
    parts: Sequence[str] = [f"{count} {form}" for form, count in formats.most_common()]
    return ", ".join(parts)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
