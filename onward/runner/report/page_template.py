"""The pages of runs: a template with its style, its scripts and its data in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from onward.measure.profile.html_page import script_json

_PARTS = {"__STYLE__": "page_style.css", "__CURVES__": "curve_panels.js"}
_DATA = "__DATA__"


def fill_page(template: str, data: Mapping[str, Any]) -> str:
    """The text of a page; `template` is a file of this folder. It needs no network."""
    folder = files("onward.runner.report")
    text = folder.joinpath(template).read_text("utf-8")
    for place, part in _PARTS.items():
        text = text.replace(place, folder.joinpath(part).read_text("utf-8"))
    return text.replace(_DATA, script_json(data))
