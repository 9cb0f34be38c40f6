"""Checks of SessionOptions and RunOptions, in addition to those of onward.settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onward.settings as settings
from onward.errors import EntryMissing, OptionError
from onward.message_text import suggest_names

THREADS = settings.whole_number(hint="give 0 to let the engine choose")
SEVERITY = settings.whole_number(
    -1, 4, "give 0 verbose, 1 info, 2 warning, 3 error, 4 fatal, or -1 for the logger's own"
)
SIZE = settings.whole_number(-1, hint="give a size, or -1 to leave the dimension dynamic")
_ENTRY_BYTES = {"key": 1024, "value": 8192}  # onnxruntime's limits


def shared_memory(name: str, value: Any) -> Any:
    if value is None or (hasattr(value, "hold") and hasattr(value, "arena")):
        return value
    raise settings.setting_error(name, "a SharedMemory or None", value, "such as SharedMemory()")


def ort_tensor(name: str, value: Any) -> Any:
    if hasattr(value, "data_ptr") and hasattr(value, "is_tensor"):
        return value
    raise OptionError(
        f"{name} must be an OrtValue, not {type(value).__name__}\n"
        "make one: OrtValue.ortvalue_from_numpy(array)"
    )


def config_entry(key: Any, value: Any) -> tuple[str, str]:
    """The key and the value of a configuration entry, which are strings."""
    checked = settings.text("the key of a configuration entry", key)
    entry = settings.text(f"configuration entry {checked!r}", value)
    for what, given in {"key": checked, "value": entry}.items():
        if len(given) > _ENTRY_BYTES[what]:
            raise OptionError(
                f"the {what} of a configuration entry must have at most "
                f"{_ENTRY_BYTES[what]} characters, not {len(given)}\n"
                "see ONNX Runtime's list of configuration keys"
            )
    if not checked:
        raise OptionError(
            "the key of a configuration entry is empty\n"
            "give one of ONNX Runtime's keys, such as 'session.intra_op.allow_spinning'"
        )
    return checked, entry


def entry_of(entries: Mapping[str, str], key: str, kind: str) -> str:
    if key not in entries:
        raise EntryMissing(
            f"no {kind} configuration entry {key!r} was set\n"
            f"{suggest_names(key, entries, 'set are')}"
        )
    return entries[key]


def fix_dimension(sizes: dict[str, int], name: Any, size: Any) -> None:
    """Set the size of a dimension; -1 leaves it dynamic."""
    name = settings.text("the name of a dimension", name)
    number = SIZE(f"the size of dimension {name!r}", size)
    if number < 0:
        sizes.pop(name, None)
    else:
        sizes[name] = number
