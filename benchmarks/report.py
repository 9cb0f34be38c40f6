"""Write result files with hardware, versions, date and command."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "onward", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "torch", "numpy", "onnxsim",
    "lightning", "transformers",
)  # fmt: skip


def circumstances() -> dict[str, Any]:
    """The hardware, versions, date and command of a measurement."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python {' '.join(sys.orig_argv[1:])}",  # as it was typed
        "machine": f"{platform.machine()}, {_cores()}, {_processor()}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": {name: _version(name) for name in PACKAGES},
    }


def write(name: str, rows: list[dict[str, Any]], path: Path | None = None, **more: Any) -> Path:
    """Save a benchmark's rows to `path`, or under benchmarks/results/ with processor and date."""
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}-{architecture()}-{time.strftime('%Y-%m-%d')}.json"
    path.write_text(json.dumps({**circumstances(), **more, "rows": rows}, indent=2) + "\n")
    return path


def architecture() -> str:
    """The processor's architecture as a file's name has it: x86-64, aarch64."""
    machine = platform.machine().lower().replace("_", "-")
    return {"amd64": "x86-64", "arm64": "aarch64"}.get(machine, machine)


def _cores() -> str:
    """The number of cores, and how many of them this process may use, if fewer."""
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return f"{cores} cores" if usable == cores else f"{cores} cores, pinned to {usable}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _processor() -> str:
    for line in (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ()
    ):
        if line.startswith(("model name", "CPU part")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "?"
