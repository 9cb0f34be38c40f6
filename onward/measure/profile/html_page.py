"""The page of a profile: its figures in one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from onward.measure.page_style import page_style


def render(data: Mapping[str, Any]) -> str:
    """The page with its style and its data."""
    text = files("onward.measure.profile").joinpath("page.html").read_text("utf-8")
    return text.replace("__STYLE__", page_style()).replace("__DATA__", script_json(data))


def script_json(data: Mapping[str, Any]) -> str:
    """Data as JSON inside a script element; signs are escaped, so that no name can end the script.

    >>> script_json({"name": "</script>"})
    '{"name": "\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
