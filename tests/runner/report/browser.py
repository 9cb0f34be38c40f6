"""A page in a real browser, after its scripts ran."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class OpenedPage:
    """The elements of a page as text, and what it wrote to the console."""

    dom: str
    console: list[str]

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.dom))


def open_page(page: Path | str, folder: Path, *more: str) -> OpenedPage:
    """Open a file or a URL; `folder` is the browser's own. Skips where there is no browser."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        if os.environ.get("ONWARD_NEEDS_BROWSER") == "1":
            pytest.fail("ONWARD_NEEDS_BROWSER=1, but there is no chromium on the path")
        pytest.skip("no chromium on the path")
    address = page if isinstance(page, str) else page.as_uri()
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu", "extensions")
    command = [
        found, "--headless", "--no-sandbox", "--no-first-run", "--enable-logging=stderr",
        *(f"--disable-{word}" for word in quiet), f"--user-data-dir={folder}",
        "--virtual-time-budget=3000", "--window-size=1200,1600", *more, "--dump-dom", address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    # the page without its sources, in which the patterns of elements occur too
    dom = re.sub(r"<(script|style)\b.*?</\1>", "", done.stdout, flags=re.S)
    return OpenedPage(dom, [line for line in done.stderr.splitlines() if "CONSOLE" in line])
