"""SessionOptions in messages: as JSON, with the data of initializers in buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from onward.graph.limits import ModelLimits
from onward.providers.options import SessionOptions
from onward.providers.ort.ort_values import to_numpy, to_ort
from onward.workers import messages

_PARENT_ONLY = ("native", "isolated", "run_timeout", "shared")  # the child has its own, or none


def pack_options(options: SessionOptions, buffers: list[Any]) -> dict[str, Any]:
    """Options as JSON; the data of initializers goes to `buffers`."""
    packed: dict[str, Any] = {}
    for setting in fields(options):
        value = getattr(options, setting.name)
        if setting.name in _PARENT_ONLY:
            continue
        if setting.name == "initializers":
            value = [[name, messages.pack(to_numpy(v), buffers)] for name, v in value.items()]
        elif is_dataclass(value) and not isinstance(value, type):
            value = asdict(value, dict_factory=_sets_as_lists)
        packed[setting.name] = value
    return packed


def _sets_as_lists(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {k: sorted(v) if isinstance(v, (set, frozenset)) else v for k, v in pairs}


def unpack_options(packed: dict[str, Any], buffers: Iterator[Any]) -> SessionOptions:
    """The options that `pack_options` packed."""
    options = SessionOptions()
    for name, value in packed.items():
        if name == "initializers":
            value = {key: to_ort(messages.unpack(v, buffers)) for key, v in value}
        elif name == "limits" and value is not None:
            value = ModelLimits(**value)
        setattr(options, name, value)
    return options
