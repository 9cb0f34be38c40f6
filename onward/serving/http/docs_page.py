"""The page at /docs: all routes, with forms that send requests to this server."""

from __future__ import annotations

import functools
from importlib.resources import files

from onward.measure.page_style import page_style


@functools.cache
def docs_page() -> str:
    """The page as HTML; it needs no other host, and reads /openapi.json."""
    text = files("onward.serving.http").joinpath("docs_page.html").read_text("utf-8")
    return text.replace("__STYLE__", page_style())
