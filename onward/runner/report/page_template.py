"""The pages of runs: a template with its style, its scripts and its data in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from onward.measure.page_style import page_style
from onward.measure.profile.html_page import script_json


def fill_page(template: str, data: Mapping[str, Any]) -> str:
    """The text of a page; `template` is a file of this folder. It needs no network."""
    folder = files("onward.runner.report")
    text = folder.joinpath(template).read_text("utf-8")
    text = text.replace("__STYLE__", page_style())
    text = text.replace("__CURVES__", folder.joinpath("curve_panels.js").read_text("utf-8"))
    return text.replace("__DATA__", script_json(data))
