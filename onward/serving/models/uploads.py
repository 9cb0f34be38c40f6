"""Files that a client sends with the request to load a model, written to a temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from onward.errors import RequestInvalid

PREFIX = "file:"


def write_uploads(parameters: Mapping[str, Any]) -> TemporaryDirectory[str] | None:
    """A folder with the files of `"file:1/model.onnx": bytes`; None if there are none."""
    files = {name: data for name, data in parameters.items() if name.startswith(PREFIX)}
    if not files:
        return None
    for name, data in files.items():
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise RequestInvalid(f"parameter {name!r} is not bytes: send the file as base64")
        path = PurePosixPath(name.removeprefix(PREFIX))
        if path.is_absolute() or ".." in path.parts or "\0" in name or len(path.parts) < 2:
            raise RequestInvalid(f"parameter {name!r} is not a path such as file:1/model.onnx")
    folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="onward-upload-")
    try:
        for name, data in files.items():
            target = Path(folder.name, name.removeprefix(PREFIX))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    except OSError as error:
        folder.cleanup()
        raise RequestInvalid(f"the files cannot be written: {error}") from error
    return folder
