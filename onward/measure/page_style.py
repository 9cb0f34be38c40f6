"""The style sheet that the HTML pages of the package share."""

from __future__ import annotations

from importlib.resources import files


def page_style() -> str:
    """The style sheet as text, to be written into a page: a page needs no other file."""
    return files("onward.measure").joinpath("page_style.css").read_text("utf-8")
