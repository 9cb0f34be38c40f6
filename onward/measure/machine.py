"""What a measurement is true of: this machine, these versions. And where measurements are kept."""

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

from platformdirs import user_cache_path

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
    """How many cores this process may use: a container may have fewer than the machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _processor() -> str:
    """The processor's own name; ARM's Linux gives numbers instead."""
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
    return user_cache_path("onward", appauthor=False) / name


def digest(*parts: Any) -> str:
    """A short name for what these parts say."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def keep(path: Path, record: dict[str, Any]) -> bool:
    """Write a record whole or not at all, and return whether: a read-only folder is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(record, file, indent=2)
        os.replace(file.name, path)
    except OSError:
        return False
    return True


def kept(path: Path) -> dict[str, Any] | None:
    """A record that was kept, or None where there is none or it is broken."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
