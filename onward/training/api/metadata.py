"""Metadata of a model's bytes, read without opening the model."""

from __future__ import annotations

from onward.graph.survey.wire import fields, text

_PROPS = 14 << 3 | 2  # ModelProto.metadata_props
_KEY, _VALUE = 1 << 3 | 2, 2 << 3 | 2


def metadata_of(model: bytes) -> dict[str, str]:
    """The model's metadata_props."""
    found = {}
    for tag, start, end in fields(model, 0, len(model)):
        if tag == _PROPS:
            parts = {t: text(model, a, b) for t, a, b in fields(model, start, end)}
            found[parts.get(_KEY, "")] = parts.get(_VALUE, "")
    return found
