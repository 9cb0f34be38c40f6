"""Where a model should be: the check before anything is read."""

from __future__ import annotations

from pathlib import Path

from onward.errors import InvalidModel


def check_readable(path: Path) -> None:
    """Refuse what is not a file, in one line that says so."""
    if not path.exists():
        raise FileNotFoundError(f"no model at {path}")
    if not path.is_file():
        raise InvalidModel(f"{path} is not a file\ngive the path of the .onnx file inside it")
