"""Convert frozen dataclasses to JSON, {"kind": class name, field: value, ...}, and back.

Checkpoints, programs and artifacts contain these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from onward.errors import OptionError
from onward.message_text import suggest_names

T = TypeVar("T")


def record(value: Any) -> dict[str, Any]:
    """The class name and the fields of a dataclass as JSON values."""
    return {
        "kind": type(value).__name__,
        **{field.name: _plain(getattr(value, field.name)) for field in fields(value)},
    }


def restore(data: Mapping[str, Any], kinds: Mapping[str, type[T]], what: str) -> T:
    """The dataclass from its record; `what` names the kind of object in errors."""
    if not isinstance(data, Mapping) or "kind" not in data:
        raise OptionError(
            f"not a saved {what}: {data!r} has no 'kind'\ngive what to_dict() returned"
        )
    kind = kinds.get(data["kind"]) if isinstance(data["kind"], str) else None
    if kind is None:
        hint = suggest_names(str(data["kind"]), sorted(kinds))
        raise OptionError(f"no {what} is called {data['kind']!r}\n{hint}")
    given = {name: value for name, value in data.items() if name != "kind"}
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            hint = suggest_names(str(name), known, "it has")
            raise OptionError(f"{kind.__name__} has no setting {name!r}\n{hint}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise OptionError(
                f"not a saved {what}: {data!r} has no {name!r}, which a {kind.__name__} needs\n"
                "give what to_dict() returned"
            )
    return kind(**{name: _restored(value, kinds, what) for name, value in given.items()})


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return record(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _restored(value: Any, kinds: Mapping[str, type[T]], what: str) -> Any:
    if isinstance(value, Mapping):
        return restore(value, kinds, what)
    if isinstance(value, list):
        return tuple(_restored(each, kinds, what) for each in value)
    return value
