"""Numbers, times and settings of runs as text for tables."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Any

_SHARES = re.compile(r"(val_)?(accuracy|balanced_accuracy|top_?\d+.*|precision.*|recall.*|f1.*)")


def show_number(name: str, number: float | None) -> str:
    """A number; shares, such as an accuracy, as percent.

    >>> show_number("val_accuracy", 0.9876), show_number("val_loss", 0.05123)
    ('98.76%', '0.05123')
    """
    if number is None or not math.isfinite(number):
        return "" if number is None else str(number)
    if _SHARES.fullmatch(name) and 0 <= number <= 1:
        return f"{100 * number:.2f}%"
    return f"{number:,.0f}" if number == int(number) else f"{number:.4g}"


def show_duration(seconds: float | None) -> str:
    """
    >>> show_duration(7.25), show_duration(252), show_duration(7322), show_duration(None)
    ('7.2s', '4m 12s', '2h 2m', '')
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = int(seconds // 60)
    return (
        f"{minutes}m {int(seconds % 60)}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60}m"
    )


def show_when(text: str) -> str:
    """A time of ISO 8601, on this machine's clock.

    >>> show_when("2026-11-16T14:02:11"), show_when("yesterday")
    ('2026-11-16 14:02', 'yesterday')
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{time.astimezone() if time.tzinfo else time:%Y-%m-%d %H:%M}"


def show_value(value: Any) -> str:
    """
    >>> show_value(None), show_value(["a"]), show_value(0.1), show_value("cosine")
    ('none', '["a"]', '0.1', 'cosine')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
