"""Report: what a compression did, what it saved and what it cost.

report = quantize("model.onnx", "data.npz")
print(report)                   # a table
report.save("small.onnx")
report.to_json(), report.page()
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.compress.quality import Quality
from onward.formatting import show_bytes, show_count, show_seconds
from onward.graph.files import save
from onward.graph.paths import to_path
from onward.measure.page_style import page_style


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one model; None: not measured.

    Attributes:
        file_bytes: the size of its file, external data included
        seconds: the median time of a run
        memory: bytes that a process needs for its session and a run
        quality: its outputs compared with the original's
        macs: multiplications of a run
        parameters: the number of its weights' elements
    """

    file_bytes: int | None = None
    seconds: float | None = None
    memory: int | None = None
    quality: Quality | None = None
    macs: int | None = None
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """What was done to one node or weight, or why it was not.

    Attributes:
        name: the node's name, or the weight's
        operator: the node's operator
        format: what it became, such as "int8 static", "int4, blocks of 32", "192 of 384 channels";
            "float32" or "unchanged" if it stayed
        reason: why; "" where the format says it all
    """

    name: str
    operator: str
    format: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a compression: the model, its figures before and after, each change.

    Attributes:
        task: what was done: "quantize", "prune", ...
        model: the best model that was found; the original's copy if nothing helped
        helped: whether it is smaller or faster, within the budget
        before, after: the figures of the original and of the model
        changes: each node or weight, in the order of the graph
        notes: sentences for the user: what was chosen and why, what was undone
        metric_name: the name of the user's metric
        details: figures of a task of its own, which `to_json` includes
        rejected: the best model that was found where none was good enough; `save` with `force`
            writes it
        rejected_figures: its figures
        after_saving: is called with the path of each file that `save` has written
    """

    task: str
    model: ir.Model
    helped: bool
    before: Measured
    after: Measured
    changes: Sequence[Change] = ()
    notes: Sequence[str] = ()
    metric_name: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    rejected: ir.Model | None = None
    rejected_figures: Measured | None = None
    after_saving: Callable[[Path], None] | None = field(default=None, repr=False)

    @property
    def speedup(self) -> float | None:
        """How many times as fast the model is as the original."""
        if not self.before.seconds or not self.after.seconds:
            return None
        return self.before.seconds / self.after.seconds

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the model; with `force`, the best one that was found even if it did not help."""
        chosen = self.rejected if force and not self.helped and self.rejected else self.model
        save(chosen, path)
        if self.after_saving is not None:
            self.after_saving(to_path(path))

    def to_json(self) -> dict[str, Any]:
        """The report without the model, as values that JSON has."""
        return {
            "task": self.task,
            "helped": self.helped,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "best_found": None if self.rejected_figures is None else asdict(self.rejected_figures),
            "speedup": self.speedup,
            "metric_name": self.metric_name,
            "changes": [asdict(each) for each in self.changes],
            "notes": list(self.notes),
            **self.details,
        }

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """The figures as text: what, before, after (or of the best one found), ratio."""
        a, b = self.before, self.rejected_figures or self.after
        pairs = [
            ("file", show_bytes, a.file_bytes, b.file_bytes),
            ("latency", show_seconds, a.seconds, b.seconds),
            ("memory", show_bytes, a.memory, b.memory),
            ("multiplications", show_count, a.macs, b.macs),
            ("parameters", show_count, a.parameters, b.parameters),
        ]
        for name, show, before, after in pairs:
            if before is not None and after is not None:
                ratio = f"{after / before:.2f}" if before else ""
                if name == "latency" and after:
                    ratio = f"{before / after:.2f} times as fast"
                yield name, show(before), show(after), ratio
        yield from self._quality_rows()

    def _quality_rows(self) -> Iterator[tuple[str, str, str, str]]:
        quality, before = (self.rejected_figures or self.after).quality, self.before.quality
        if quality is None:
            return
        yield "similarity", "1", f"{quality.similarity:.4f}", ""
        yield "error", "0", f"{quality.error:.2%}", ""
        if quality.agreement is not None:
            yield "same answers", "100 %", f"{quality.agreement:.1%}", ""
        if quality.metric is not None and before is not None and before.metric is not None:
            name, change = self.metric_name or "metric", quality.metric - before.metric
            yield name, f"{before.metric:.4g}", f"{quality.metric:.4g}", f"{change:+.2g}"

    def __str__(self) -> str:
        table = [("", "before", self._second_heading, ""), *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(4)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths)).rstrip() for row in table]
        return "\n".join([*lines, *self.notes])

    @property
    def _second_heading(self) -> str:
        return "after" if self.rejected_figures is None else "best found"

    def page(self) -> str:
        """The report as one HTML file that needs no network."""
        figures = "".join(_row(row) for row in self.rows())
        changes = "".join(
            _row((each.name, each.operator, each.format, each.reason)) for each in self.changes
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f"<!doctype html><meta charset=utf-8><title>onward {self.task}</title>"
            f"<style>{page_style()}</style><h1>onward {html.escape(self.task)}</h1>{notes}"
            f"<table><tr><th></th><th>before</th><th>{self._second_heading}</th><th></th></tr>"
            f"{figures}</table><h2>Each node</h2>"
            "<table><tr><th>node</th><th>operator</th><th>format</th><th>why</th></tr>"
            f"{changes}</table>"
        )


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"


def finite_or_none(number: float | None) -> float | None:
    """A number for JSON, which has no NaN."""
    return number if number is not None and math.isfinite(number) else None
