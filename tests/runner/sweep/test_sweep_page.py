"""The page of a sweep: its data, escaped names, and the importances that it shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from onward.runner.sweep.importances import RANKS, measure_importances, rank_importances
from onward.runner.sweep.search_space import read_search
from onward.runner.sweep.sweep_page import render_sweep
from onward.runner.sweep.sweep_result import SweepResult, TrialRow

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
SPACE = read_search(
    {"learning_rate": "1e-3..1:log", "target": ["</script><b>", "y"], "epochs": "1..5"}
)


def rows(count: int) -> list[TrialRow]:
    """Only the learning rate decides."""
    found = []
    for n in range(count):
        settings = {
            "learning_rate": 10 ** (-3 * ((7 * n) % count) / count),
            "target": ["</script><b>", "y"][n % 2],
            "epochs": 1 + n % 5,
        }
        found.append(TrialRow(n, "finished", settings, settings["learning_rate"] * 2))
    return [*found, TrialRow(count, "failed", settings, error="<i>no</i>")]


def result(count: int = 20) -> SweepResult:
    found = rows(count)
    return SweepResult(Path("sweeps/<b>"), found, "val_loss", False, {"epochs": 0.5}, RANKS)


def test_page_holds_its_data_and_escapes_names() -> None:
    page = render_sweep(result(), SPACE)
    assert "</script><b>" not in page and "<i>no" not in page and "__DATA__" not in page
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert data["trials"][0]["shown"]["target"] == "</script><b>" and len(data["trials"]) == 21
    assert data["settings"][0] == {"name": "learning_rate", "low": 1e-3, "high": 1.0, "log": True}
    assert not re.search(r"""(src|href)=["']http|@import""", page)


@pytest.mark.integration
@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_page_draws_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render_sweep(result(), SPACE))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", str(tmp_path / "page.html")]
    page = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert 'data-ready="yes"' in page and '<html lang="en" data-error' not in page
    assert page.count("<polyline") == 20 and page.count("<circle") == 4 * 20
    assert "&lt;i&gt;no&lt;/i&gt;" in page


def test_setting_that_decides_has_the_largest_share() -> None:
    shares = rank_importances(rows(24)[:-1])
    assert next(iter(shares)) == "learning_rate" and shares["learning_rate"] > 0.6
    assert shares["target"] < 0.1 and shares["epochs"] < 0.1


def test_few_trials_have_no_shares() -> None:
    assert measure_importances(None, rows(3)) == ({}, RANKS)
