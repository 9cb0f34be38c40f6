"""Help of verbs from docstrings: paragraphs that the terminal wraps."""

from __future__ import annotations

import inspect


def unwrap(text: str) -> str:
    """A docstring with each paragraph on one line, for the terminal to wrap at its own width.

    Paragraphs that begin with a backspace, such as examples, stay as they are.

    >>> unwrap("Read\\na model.\\n\\n\\b\\nonward a\\nonward b")
    'Read a model.\\n\\n\\x08\\nonward a\\nonward b'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith("\b") else " ".join(p.split()) for p in paragraphs)
