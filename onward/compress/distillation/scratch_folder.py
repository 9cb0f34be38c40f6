"""A temporary folder that is removed with the object that it belongs to."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


def make_scratch_folder(owner: object, prefix: str) -> Path:
    """Make a temporary folder; it is removed when `owner` is, or at the end of the process."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder
