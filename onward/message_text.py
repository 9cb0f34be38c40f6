"""Write names, sizes and errors into messages: a list of names, a suggestion, a shape."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_MOST_LISTED = 8
_MOST_SUGGESTED = 3


def list_names(names: Iterable[str]) -> str:
    """The first names, quoted, as a message lists them.

    >>> list_names(["weight", "bias"])
    "'weight', 'bias'"
    >>> list_names([])
    'none'
    """
    listed = [repr(name) for name in names]
    return ", ".join(listed[:_MOST_LISTED] + ["..."] * (len(listed) > _MOST_LISTED)) or "none"


def suggest_names(name: str, known: Iterable[str], otherwise: str = "there are") -> str:
    """Suggest what an unknown name should be: the most similar names, or a list of all.

    >>> suggest_names("wieght", ["weight", "bias"])
    "did you mean 'weight'?"
    >>> suggest_names("lr", ["lora", "learning_rate"])
    "did you mean 'learning_rate'?"
    >>> suggest_names("alpha", ["weight", "bias"])
    "there are 'weight', 'bias'"
    """
    names = list(dict.fromkeys(known))
    wanted = str(name)  # a user's may not be a text
    alike = [each for each in names if has_initials(each, wanted)]
    alike = alike or difflib.get_close_matches(wanted, names, _MOST_SUGGESTED)
    if alike:
        return f"did you mean {' or '.join(map(repr, alike))}?"
    return f"{otherwise} {list_names(names)}"


def has_initials(name: str, letters: str) -> bool:
    """Whether letters are the first ones of a name's words.

    >>> has_initials("learning_rate", "lr"), has_initials("--weight-decay", "--wd")
    (True, True)
    """
    words, wanted = re.split(r"[_-]+", name.lstrip("-")), letters.lstrip("-").lower()
    return len(wanted) > 1 and "".join(word[:1] for word in words) == wanted


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where it has none.

    >>> first_line(ValueError("too large\\nuse less")), first_line(KeyboardInterrupt())
    ('too large', 'KeyboardInterrupt')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def format_sizes(shape: Iterable[int | str | None]) -> str:
    """The sizes of a shape, without brackets; a question mark for an unknown one.

    >>> format_sizes(["batch", 3, None])
    'batch, 3, ?'
    """
    return ", ".join("?" if size is None else str(size) for size in shape)
