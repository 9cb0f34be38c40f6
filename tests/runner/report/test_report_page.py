"""The report's page in a real browser: no script error, curves drawn, hints under the pointer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from onward.runner.report.compare_plot import write_plot
from onward.runner.report.compare_runs import read_runs
from onward.runner.report.write_report import write_report
from tests.runner.report.browser import open_page
from tests.runner.report.made_runs import make_facts, make_run

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u2028<!--"

# What a person does: points at a curve, switches to log scale, takes shares, presses a key.
_ACT = """<script>
const svg = document.querySelector('[data-panel="loss"] svg'), box = svg.getBoundingClientRect();
const at = { clientX: box.left + box.width / 2, clientY: box.top + 60 };
svg.dispatchEvent(new PointerEvent("pointermove", at));
const pointed = [tip.style.visibility, tip.textContent];
svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", cancelable: true }));
const moved = tip.textContent;
const before = svg.querySelector("path.line").getAttribute("d");
document.getElementById("log").click();
const after = document.querySelector('[data-panel="loss"] path.line').getAttribute("d");
document.getElementById("as-shares").click();
const result = { pointed, moved: moved !== pointed[1], changed: before !== after,
  crosses: document.querySelectorAll("line.cross").length,
  wide: document.documentElement.scrollWidth > innerWidth,
  background: getComputedStyle(document.body).backgroundColor };
document.documentElement.setAttribute("data-result", JSON.stringify(result));
</script>
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs"), "digits-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)  # figures as SVG are written faster
        return write_report(folder, make_facts((EVIL, *"123456789")))


@pytest.mark.integration
def test_report_is_drawn_and_answers(report: Path, tmp_path: Path) -> None:
    page = open_page(_acted(report, tmp_path), tmp_path / "browser")
    assert not page.console
    assert 'data-drawn="yes"' in page.dom and "data-error" not in page.dom
    assert page.count('class="panel"') == 4
    assert page.count('class="curve line"') == 5  # loss has two
    assert page.count('class="cell"') == 100
    assert page.count("<figure>") == page.count("<img") == 18  # no name made an element
    assert "Validation accuracy 98.9" in page.dom and "cross_entropy" in page.dom
    assert "--schedule one_cycle" in page.dom and "trained of 61.7 k parameters" in page.dom
    assert re.search(r"visible&quot;,&quot;step 2\d\d, epoch 1training\S+validation", page.dom)
    for words in ("moved", "changed"):
        assert f"&quot;{words}&quot;:true" in page.dom


@pytest.mark.integration
def test_report_fits_a_phone_in_dark_mode(report: Path, tmp_path: Path) -> None:
    settings = ("--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    page = open_page(_acted(report, tmp_path), tmp_path / "browser", *settings)
    assert not page.console
    assert "&quot;wide&quot;:false" in page.dom and "rgb(19, 19, 18)" in page.dom


def _acted(report: Path, folder: Path) -> Path:
    page = folder / "acted.html"
    page.write_text(report.read_text("utf-8").replace("</body>", f"{_ACT}</body>"), "utf-8")
    return page


def test_no_name_ends_the_script(report: Path) -> None:
    text = report.read_text("utf-8")
    assert text.count("</script>") == 4 and "<img" not in text
    assert "onerror=alert" in text and "\u2028" not in text


def test_page_needs_no_network(report: Path) -> None:
    text = report.read_text("utf-8")
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text and "@import" not in text


@pytest.mark.integration
def test_comparison_page_opens(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "slow", speed=0.5)
    make_run(tmp_path / "runs", "fast <b>", config="epochs = 9\n")
    write_plot(read_runs(tmp_path / "runs"), tmp_path / "compare.html")
    page = open_page(tmp_path / "compare.html", tmp_path / "browser")
    assert not page.console and 'data-drawn="yes"' in page.dom
    assert "fast &lt;b&gt;" in page.dom and "<th>epochs</th>" in page.dom
    assert page.count('class="curve line') == 2 * 5
