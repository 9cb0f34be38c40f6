"""The page of a profile: its figures in one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_PLACE = "__PROFILE__"


def render(data: Mapping[str, Any]) -> str:
    """The page with its data."""
    template = files("onward.measure.profile").joinpath("page.html").read_text("utf-8")
    return template.replace(_PLACE, script_json(data))


def script_json(data: Mapping[str, Any]) -> str:
    """Data as JSON inside a script element; signs are escaped, so that no name can end the script.

    >>> script_json({"name": "</script>"})
    '{"name": "\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
