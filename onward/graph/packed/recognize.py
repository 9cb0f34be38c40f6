"""Recognize packed models by their first bytes; imports nothing large."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

MAGIC = b"\x8bONWPCK\n"
SUFFIX = ".onnxpack"


def is_packed(source: Any) -> bool:
    """Whether a source is a packed model, by its first bytes, or by its suffix."""
    if isinstance(source, (bytes, memoryview)):
        return bytes(source[: len(MAGIC)]) == MAGIC
    if not isinstance(source, (str, os.PathLike)):
        return False
    if Path(source).suffix == SUFFIX:
        return True
    if not os.path.isfile(source):
        return False
    with open(source, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
