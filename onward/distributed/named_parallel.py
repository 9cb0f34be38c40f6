"""Read Parallel from plain settings, as flags and config.toml have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import onward.distributed
from onward.distributed.parallel import Parallel
from onward.errors import OptionError
from onward.message_text import suggest_names

# name: the class in onward.distributed, and its settings
COMPRESSIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bfloat16": ("HalfPrecision", {"dtype": "bfloat16"}),
    "float16": ("HalfPrecision", {"dtype": "float16"}),
    "int8": ("Int8", {}),
    "powersgd": ("PowerSGD", {}),
    "topk": ("TopK", {}),
}


def read_parallel(settings: Mapping[str, Any]) -> Parallel:
    """Parallel from the settings that have its names; `compression` is a name, `local_steps` n.

    >>> read_parallel({"shard": 2, "zero": 1, "epochs": 3, "compression": None})
    Parallel(shard=2, zero=1)
    """
    given = {each.name: settings[each.name] for each in fields(Parallel) if each.name in settings}
    if "peer_timeout" in settings:
        given["timeout"] = settings["peer_timeout"]
    name, steps = given.pop("compression", None), given.pop("local_steps", None)
    if name is not None:
        given["compression"] = make_compression(name)
    if steps is not None:
        given["local_steps"] = getattr(onward.distributed, "LocalSGD")(every=steps)  # noqa: B009
    return Parallel(**given)


def make_compression(name: str) -> Any:
    """The compression of a name, with its default settings."""
    if name not in COMPRESSIONS:
        raise OptionError(f"no compression {name!r}\n{suggest_names(name, COMPRESSIONS)}")
    kind, settings = COMPRESSIONS[name]
    return getattr(onward.distributed, kind)(**settings)
