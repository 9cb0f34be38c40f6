"""The page in a real browser: no script error, every plot drawn, names that attack harmless."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from onward.measure.profile.bottlenecks import analyse
from onward.measure.profile.diagnosis import diagnose
from onward.measure.profile.html_page import render
from onward.measure.profile.report import Profile
from onward.measure.profile.timeline import memory_lines, timeline
from tests.measure.profile.measured import ROUND, measurement, record

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u2028<!--"


@pytest.fixture(scope="module")
def profile() -> Profile:
    records = [record(EVIL, "Relu", 20e-6, (4000,), start=1e-6, memory=1 << 20)]
    for n in range(40):
        made = record(
            f"sigmoid{n}", "Sigmoid", 5e-6, (500,), start=25e-6 + n * 6e-6, memory=2 << 20
        )
        records.append(made)
    records.append(record("move", "Transpose", 5e-6, (500,), start=270e-6, thread=2))
    measured = measurement(records, 300e-6)
    analysis = analyse(measured, ROUND)
    return Profile(
        EVIL, diagnose(analysis, measured, ROUND), analysis, measured, dict(ROUND), 0, 1, 2
    )


class Page(HTMLParser):
    """Counts what the browser made of the page: elements by plot, attributes of the root."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root: dict[str, str | None] = {}
        self.inside: list[tuple[str, str]] = []
        self.marks: dict[tuple[str, str], int] = {}
        self.scripts, self.images, self.rows, self.title = 0, 0, 0, ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.root = given if tag == "html" else self.root
        self.scripts += tag == "script"
        self.images += tag == "img"
        plot = next((name for kind, name in reversed(self.inside) if name), "")
        self.rows += tag == "tr" and plot == "table"
        if "mark" in (given.get("class") or "") or "line" in (given.get("class") or "").split():
            self.marks[plot, tag] = self.marks.get((plot, tag), 0) + 1
        if tag not in ("meta", "link", "input", "img"):
            self.inside.append((tag, str(given.get("id") or "")))

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop()[0] != tag:
            pass


def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        if os.environ.get("ONWARD_NEEDS_BROWSER") == "1":
            pytest.fail("ONWARD_NEEDS_BROWSER=1, but there is no chromium on the path")
        pytest.skip("no chromium on the path")
    return found


def opened(page: Path, folder: Path, *more: str) -> tuple[str, str]:
    """The page as the browser has it after its scripts ran, and what it logged."""
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu", "extensions")
    command = [
        browser(), "--headless", "--no-sandbox", "--no-first-run", "--enable-logging=stderr",
        *(f"--disable-{word}" for word in quiet), f"--user-data-dir={folder}",
        "--virtual-time-budget=3000", "--window-size=1200,1600", *more, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


@pytest.mark.integration
def test_the_page_opens_in_a_browser(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    profile.save_page(path)
    dom, log = opened(path, tmp_path / "browser")
    page = Page(dom)
    assert page.root.get("data-error") is None
    assert page.root.get("data-drawn") == "yes"
    assert "CONSOLE" not in log, [line for line in log.splitlines() if "CONSOLE" in line]
    nodes, operators = profile.nodes, profile.operators
    placed = [node for node in nodes if node.flops and node.bytes]
    assert 0 < len(placed) < len(nodes)
    assert page.marks["operators", "rect"] == len(operators) == 3
    assert page.marks["roofline", "circle"] == len(placed)
    assert page.marks["timeline", "rect"] == len(profile.measured.trace.records)
    assert page.marks["memory", "path"] == 2  # the arena and the process; no graph, no tensors
    assert page.rows == len(nodes) + 1
    assert page.scripts == 3 and page.images == 0  # a name made no element


@pytest.mark.integration
def test_the_page_works_on_a_phone_in_dark_mode(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    profile.save_page(path)
    settings = ("--window-size=360,800", "--blink-settings=preferredColorScheme=0")
    dom, _ = opened(path, tmp_path / "browser", *settings)
    page = Page(dom)
    assert page.root.get("data-error") is None and page.root.get("data-drawn") == "yes"


@pytest.mark.integration
def test_script_errors_fail_the_test(profile: Profile, tmp_path: Path) -> None:
    """The test above can fail: a page whose data lacks something says so."""
    data: dict[str, Any] = {**profile.to_json(), "memory": None, "timeline": []}
    path = tmp_path / "broken.html"
    path.write_text(render(data), encoding="utf-8")
    dom, log = opened(path, tmp_path / "browser")
    assert "TypeError" in str(Page(dom).root.get("data-error"))
    assert "CONSOLE" in log


def test_no_name_ends_the_script(profile: Profile) -> None:
    data = {**profile.to_json(), "memory": memory_lines(profile.measured)}
    data["timeline"] = timeline(profile.measured, profile.analysis)
    text = render(data)
    assert text.count("</script>") == 3
    assert "\u2028" not in text and "onerror=alert" in text
    assert "<img" not in text


def test_the_page_needs_no_network(profile: Profile, tmp_path: Path) -> None:
    profile.save_page(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text("utf-8")
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_memory_samples_of_many_runs_are_folded_into_one(profile: Profile) -> None:
    timing = profile.measured.timing
    starts = [0.0, 1.0, 2.0]
    samples = [(0.25, 10), (1.25, 30), (2.25, 20), (1.75, 50), (2.95, 99)]
    measured = replace(
        profile.measured,
        timing=replace(timing, starts=starts, times=[0.9, 0.9, 0.9], resident=samples),
    )
    found = memory_lines(measured)["process"]
    assert [size for _, size in found] == [20, 50]  # the middle of three; 2.95 lies in no run
