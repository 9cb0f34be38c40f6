"""A virtual environment with the client libraries: they pin older packages than Onward uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ["tritonclient[all]==2.73.0", "kserve==0.21.0"]


def client_python(folder: Path) -> Path:
    """The Python of the environment, which is made once and again when PACKAGES change."""
    python = folder / "bin" / "python"
    stamp = folder / "packages.txt"
    if stamp.is_file() and stamp.read_text().split() == PACKAGES:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True)
    stamp.write_text("\n".join(PACKAGES))
    return python
