"""The outputs that a run computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.message_text import suggest_names


def output_names(names: Sequence[str] | None, outputs: Sequence[Any]) -> list[str]:
    """The named outputs (None: all of them); one that the model does not have is an error."""
    known = [arg.name for arg in outputs]
    for name in names or ():
        if name not in known:
            raise KeyError(f"no output {name!r}; {suggest_names(name, known, 'the model gives')}")
    return list(names) if names else known
