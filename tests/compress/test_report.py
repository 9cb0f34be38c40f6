"""Report: its table, JSON, page and files."""

from __future__ import annotations

import json
from pathlib import Path

from onward.compress.quality import Quality
from onward.compress.report import Change, Measured, Report, finite_or_none
from onward.graph.files import load
from tests.models import mlp, sandwich

BEFORE = Measured(
    file_bytes=4096,
    seconds=0.002,
    quality=Quality(similarity=1.0, error=0.0, metric=0.9),
)
AFTER = Measured(
    file_bytes=1024,
    seconds=0.001,
    quality=Quality(similarity=0.99, error=0.1, agreement=0.75, metric=0.8),
)
CHANGE = Change(name="<n>", operator="MatMul", format="int8 static", reason="fast & small")


def report(**more: object) -> Report:
    given = {"helped": True, "after": AFTER, "changes": [CHANGE], "notes": ["<done>"], **more}
    return Report(task="quantize", model=mlp(), before=BEFORE, metric_name="accuracy", **given)  # type: ignore[arg-type]


def test_the_table_shows_both_models() -> None:
    lines = str(report()).splitlines()
    assert report().speedup == 2
    assert lines[0].split() == ["before", "after"] and lines[-1] == "<done>"
    assert "file          4.0 KiB  1.0 KiB  0.25" in lines
    assert "latency       2.00 ms  1.00 ms  2.00 times as fast" in lines
    assert "same answers  100 %    75.0%" in lines
    assert "accuracy      0.9      0.8      -0.1" in lines


def test_json_has_every_figure() -> None:
    found = json.loads(json.dumps(report(details={"drop": 0.01}).to_json()))
    assert found["after"]["quality"]["agreement"] == 0.75 and found["speedup"] == 2
    assert found["changes"][0]["format"] == "int8 static" and found["drop"] == 0.01
    assert found["best_found"] is None


def test_the_page_escapes_names() -> None:
    page = report().page()
    assert "&lt;n&gt;" in page and "fast &amp; small" in page and "<p>&lt;done&gt;</p>" in page


def test_what_was_rejected_is_shown_and_saved_by_force(tmp_path: Path) -> None:
    rejecting = report(helped=False, after=BEFORE, rejected=sandwich(), rejected_figures=AFTER)
    assert "best found" in str(rejecting) and "1.0 KiB" in str(rejecting)
    assert rejecting.speedup == 1 and rejecting.to_json()["best_found"]["file_bytes"] == 1024
    for force, nodes in ((False, 3), (True, 3)):
        rejecting.save(tmp_path / f"{force}.onnx", force=force)
        assert len(load(tmp_path / f"{force}.onnx").graph) == nodes
    assert load(tmp_path / "True.onnx").graph.node(1).op_type == "Pow"


def test_a_file_that_was_saved_is_passed_on(tmp_path: Path) -> None:
    saved: list[Path] = []
    report(after_saving=saved.append).save(tmp_path / "small.onnx")
    assert saved == [tmp_path / "small.onnx"]


def test_json_has_no_nan() -> None:
    assert finite_or_none(float("nan")) is None and finite_or_none(0.5) == 0.5
