"""Write dictionaries and lists as YAML, in block style."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# words that no reader of YAML takes for a number, a date, a truth value or a sign
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./\-]*(?::[A-Za-z0-9_./\-]+)*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", ".inf", ".nan"}


def to_yaml(value: Mapping[str, Any]) -> str:
    """A dictionary as YAML.

    >>> print(to_yaml({"a": {"b": [1, "two", {"c": "3"}]}, "d": {}}), end="")
    a:
      b:
        - 1
        - two
        - c: "3"
    d: {}
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    """The lines of a value that is not empty, without indentation."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not _nested(item):
                yield f"{_scalar(key)}: {_scalar(item)}"
                continue
            yield f"{_scalar(key)}:"
            yield from (f"  {line}" for line in _lines(item))
        return
    for item in value:
        first, *rest = _lines(item) if _nested(item) else [_scalar(item)]
        yield f"- {first}"
        yield from (f"  {line}" for line in rest)


def _nested(value: Any) -> bool:
    return isinstance(value, (Mapping, Sequence)) and not isinstance(value, str) and bool(value)


def _scalar(value: Any) -> str:
    """A value on one line: JSON is YAML, and plain words need no quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=False)
    # a sign that YAML does not allow, such as a line separator
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
