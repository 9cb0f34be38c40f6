"""The files of a report: figures, SVG without Pillow, and reports of runs that lack something."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import WriteFailed
from onward.runner.events import Evaluation, Mistake
from onward.runner.report.report_facts import ReportFacts
from onward.runner.report.write_report import write_report
from onward.runner.run_folder import RunFolder
from tests.runner.report.made_runs import make_facts, make_run


def shown(page: Path) -> dict[str, Any]:
    """The data of a page."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_figures_and_page_are_written(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    page = write_report(folder, make_facts(("cat", "dog")))
    assert page == folder.report
    for name in ("curves.png", "confusion.png", "roc.png"):
        assert (folder.path / name).read_bytes().startswith(b"\x89PNG")
    data = shown(page)
    assert data["roc"]["area"] == pytest.approx(0.8, abs=0.02)
    assert [row["name"] for row in data["class_scores"]] == ["cat", "dog"]
    assert {"curves.png", "metrics.csv", "config.toml"} <= {file["name"] for file in data["files"]}
    assert not data["notes"]


@pytest.fixture
def without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)


@pytest.mark.usefixtures("without_pillow")
def test_without_pillow_figures_are_svg_and_a_note_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    data = shown(write_report(folder, make_facts()))
    assert {path.name for path in folder.path.glob("*.svg")} == {"curves.svg", "confusion.svg"}
    assert "pip install onward[images]" in data["notes"][0]
    assert data["mistakes"][0]["inputs"][0]["image"].startswith("data:image/png;base64,")


@pytest.mark.usefixtures("without_pillow")
def test_settings_that_differ_from_the_default_are_marked(tmp_path: Path) -> None:
    settings = shown(write_report(make_run(tmp_path, "a"), make_facts()))["settings"]
    changed = {each["name"]: each["value"] for each in settings if each["changed"]}
    assert changed == {
        "model": "cnn.onnx", "data": "digits.npz", "learning_rate": 0.002, "crop": 2, "seed": 7,
        "schedule": "one_cycle",
    }  # fmt: skip
    assert all(each["explanation"] for each in settings)


@pytest.mark.usefixtures("without_pillow")
def test_regression_without_evaluation_has_a_report(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "bare")
    folder.path.mkdir()
    data = shown(write_report(folder, ReportFacts({})))
    assert data["columns"] == {} and data["confusion"] is None and data["mistakes"] == []
    assert [path.name for path in folder.path.iterdir()] == ["report.html"]


@pytest.mark.usefixtures("without_pillow")
def test_numbers_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", best={"step": 1, "val_loss": float("nan")})
    folder.metrics.write_text("step,epoch,loss\n1,0,nan\n2,0,inf\n3,0,0.5\n4,0,cut o")
    data = shown(write_report(folder, make_facts()))
    assert data["columns"]["loss"] == [[1, None], [2, None], [3, 0.5]]
    assert data["best"]["val_loss"] == "nan"


@pytest.mark.usefixtures("without_pillow")
def test_inputs_that_are_no_images_are_shown_as_numbers(tmp_path: Path) -> None:
    row = {"x": np.arange(20, dtype=np.float32) / 3, "pixels": np.zeros((1, 3, 8, 9), np.uint8)}
    evaluation = Evaluation(1, 0, {}, mistakes=[Mistake(7, row, np.int64(1), 0)])
    facts = make_facts(("no", "yes"), evaluation=evaluation, roc=None)
    [mistake] = shown(write_report(make_run(tmp_path, "a"), facts))["mistakes"]
    numbers, picture = mistake["inputs"]
    assert numbers["numbers"].startswith("0, 0.3333, 0.6667") and numbers["numbers"].endswith("...")
    assert (picture["height"], picture["width"]) == (8, 9)
    assert (mistake["label"], mistake["answer"]) == ("yes", "no")


@pytest.mark.usefixtures("without_pillow")
def test_many_classes_have_a_table_and_no_matrix(tmp_path: Path) -> None:
    names = tuple(map(str, range(150)))
    folder = make_run(tmp_path, "a")
    data = shown(write_report(folder, make_facts(names)))
    assert data["confusion"] is None and len(data["class_scores"]) == 150
    assert not list(folder.path.glob("confusion.*"))


@pytest.mark.usefixtures("without_pillow")
def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    folder.report.mkdir()
    with pytest.raises(WriteFailed, match=r"report\.html cannot be written: it is a folder"):
        write_report(folder, make_facts())
