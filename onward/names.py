"""Names and sizes as messages write them: some names, those most like a wrong one, a shape."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 8  # names that a message lists
_MOST_ALIKE = 3  # names that it suggests


def list_names(names: Iterable[str]) -> str:
    """The first names, as a message lists them.

    >>> list_names(["weight", "bias"])
    "'weight', 'bias'"
    >>> list_names([])
    'none'
    """
    listed = [repr(name) for name in names]
    return ", ".join(listed[:_MOST] + ["..."] * (len(listed) > _MOST)) or "none"


def suggest_names(name: str, known: Iterable[str], otherwise: str = "there are") -> str:
    """What to write instead of a name that is not known: those most like it, or some of all.

    >>> suggest_names("wieght", ["weight", "bias"])
    "did you mean 'weight'?"
    >>> suggest_names("alpha", ["weight", "bias"])
    "there are 'weight', 'bias'"
    """
    names = list(dict.fromkeys(known))
    alike = difflib.get_close_matches(str(name), names, _MOST_ALIKE)  # a user's may be no text
    if alike:
        return f"did you mean {' or '.join(map(repr, alike))}?"
    return f"{otherwise} {list_names(names)}"


def spell_sizes(shape: Iterable[int | str | None]) -> str:
    """The sizes of a shape, to be put in brackets; a question mark where one is not known.

    >>> spell_sizes(["batch", 3, None])
    'batch, 3, ?'
    """
    return ", ".join("?" if size is None else str(size) for size in shape)
