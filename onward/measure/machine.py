"""This machine and its versions, which measurements depend on, and the files that cache them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onward.lazy import LazyModule

platformdirs = LazyModule("platformdirs")

_ENGINES = ("onward", "onnxruntime", "openvino", "torch", "numpy")


@functools.cache
def machine() -> dict[str, Any]:
    """The processor and how much of it this process may use."""
    return {
        "system": platform.system(),
        "processor": f"{platform.machine()} {_processor()}".strip(),
        "cores": usable_cores(),
    }


@functools.cache
def versions() -> dict[str, str]:
    """The engines that are installed here, and their versions."""
    found = {}
    for name in _ENGINES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def usable_cores() -> int:
    """The number of cores that this process may use: in a container, fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _processor() -> str:
    """The processor's name; on ARM, Linux has only numbers."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    named = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in named.items()}
    if "model name" in fields:
        return fields["model name"]
    arm = (fields.get("CPU implementer"), fields.get("CPU part"))
    return " ".join(filter(None, arm)) or platform.processor()


def cache_folder(name: str) -> Path:
    """The folder in the user's cache that keeps measurements of a kind between runs."""
    try:
        folder = Path(platformdirs.user_cache_path("onward", appauthor=False))
    except ImportError:  # the package runs from a checkout, without its dependencies
        folder = Path.home() / ".cache" / "onward"
    return folder / name


def digest(*parts: Any) -> str:
    """A short hash of these values, for a file's name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def write_record(path: Path, record: dict[str, Any]) -> bool:
    """Write a record atomically; return whether it was written: False in a read-only folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(record, file, indent=2)
        os.replace(file.name, path)
    except OSError:
        return False
    return True


def read_record(path: Path) -> dict[str, Any] | None:
    """A record that was written, or None if there is none or it is damaged."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
