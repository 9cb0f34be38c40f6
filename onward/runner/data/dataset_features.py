"""What Hugging Face's `datasets` writes about columns into the schema of Arrow files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_KEY = b"huggingface"
_ARRAY = re.compile(r"Array\dD")


def read_features(schema: Any) -> Mapping[str, Mapping[str, Any]]:
    """The features of columns, by name; empty if the file was written by another program."""
    text = (schema.metadata or {}).get(_KEY)
    try:
        features = json.loads(text)["info"]["features"] if text else {}
    except (ValueError, KeyError, TypeError):
        return {}  # it describes columns that can be read without
    if not isinstance(features, dict):
        return {}
    return {name: each for name, each in features.items() if isinstance(each, dict)}


def class_names(features: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The names of classes of the columns whose numbers stand for some.

    >>> class_names({"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}})
    {'label': ('cat', 'dog')}
    """
    return {
        name: tuple(map(str, each["names"]))
        for name, each in features.items()
        if each.get("_type") == "ClassLabel" and isinstance(each.get("names"), list)
    }


def array_shape(feature: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    """The shape of arrays, which Arrow keeps as lists of any size; None for other columns."""
    if not _ARRAY.fullmatch(str(feature.get("_type"))):
        return None
    sizes = feature.get("shape")
    return tuple(sizes) if isinstance(sizes, list) else None
