"""The page of a profile: its figures in one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_PLACE = "__PROFILE__"


def render(data: Mapping[str, Any]) -> str:
    """The page with its data; signs are escaped, so that no name of a model can end the script."""
    template = files("onward.measure.profile").joinpath("page.html").read_text("utf-8")
    text = json.dumps(data, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return template.replace(_PLACE, text)
