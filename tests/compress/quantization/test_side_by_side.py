"""Candidates side by side: which one is chosen, the table, and what providers="auto" then runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from onward.compress import quantize
from onward.compress.quality import Quality
from onward.compress.quantization import side_by_side
from onward.compress.quantization.side_by_side import FormatCandidate, candidate_lines, choose_best
from onward.sessions.inference import InferenceSession
from tests.compress.quantization.conftest import ROWS, count_operators

CPU = "CPUExecutionProvider"
SAME = Quality(similarity=1.0, error=0.0)


def candidate(form: str, size: int, seconds: float, **more: Any) -> FormatCandidate:
    quality = Quality(similarity=1.0, error=more.pop("error", 0.0))
    return FormatCandidate(form, CPU, size, seconds, quality, more.pop("is_within", True), **more)


def test_the_fastest_within_the_budget_is_chosen() -> None:
    slow, fast = candidate("float32", 100, 2.0), candidate("int8", 30, 1.0)
    lossy = candidate("int4", 20, 0.5, is_within=False)
    assert choose_best([slow, fast, lossy]) is fast


def test_of_two_equally_fast_ones_the_smaller_is_chosen() -> None:
    large, small = candidate("float32", 100, 1.00), candidate("int4", 20, 1.02)
    assert choose_best([large, small]) is small


def test_candidates_that_are_worse_in_all_respects_are_no_trade() -> None:
    given = [
        candidate("float32", 100, 2.0),
        candidate("int8", 30, 1.0, error=0.1),
        candidate("int4", 40, 1.5, error=0.2),
    ]
    marked = side_by_side._mark_trades(iter(given))
    assert [each.is_best_trade for each in marked] == [True, True, False]


def test_the_table_has_the_fastest_first() -> None:
    lines = candidate_lines([candidate("float32", 2048, 2.0), candidate("int8", 1024, 1.0)])
    assert [line.split()[0] for line in lines] == ["format", "int8", "float32"]
    assert lines[1].split()[1:] == ["cpu", "1.0", "KiB", "1.00", "s", "0.00%"]


@pytest.fixture
def _cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_auto_measures_formats_and_stores_its_choice(
    simple: None, _cached: None, model: ir.Model, rows: dict[str, Any], tmp_path: Path
) -> None:
    report = quantize(model, rows, to="auto", memory=False)
    assert report.helped and report.details["chosen"] == {"format": "int8", "provider": CPU}
    assert {each["format"] for each in report.details["candidates"]} >= {"float32", "int8"}
    assert count_operators(report.model, "QuantizeLinear") == 3
    report.save(tmp_path / "small.onnx")
    session = InferenceSession(tmp_path / "small.onnx", providers="auto")
    session.run(None, {"x": ROWS[:8]})
    assert session.get_providers()[0] == CPU
    (result,) = session._plan.results
    assert len(result.rows) == 1 and result.rows[0].median == pytest.approx(0.7)
