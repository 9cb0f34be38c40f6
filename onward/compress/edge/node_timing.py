"""Time models with stock onnxruntime-web in Node: CPU time, one thread, models take turns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import PackageMissing, ProviderError
from onward.graph.files import save
from onward.measure.machine import cache_folder

PACKAGE = "onnxruntime-web"
_ENTRY = "dist/ort.node.min.mjs"
_LIMIT = 600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class NodeTime:
    """How a model ran in Node.

    Attributes:
        seconds: the median CPU time of a run; None if it failed
        load_seconds: CPU time to open it and run it once
        similarity: the lowest cosine of its outputs with the first model's
        error: why it failed; "" if it ran
    """

    seconds: float | None = None
    load_seconds: float | None = None
    similarity: float | None = None
    error: str = ""


def find_package(node_modules: str | os.PathLike[str] | None = None) -> Path:
    """The folder of onnxruntime-web; what is missing is named with the command that installs it.

    It is searched in the given folder, in ./node_modules, and in the user's cache.
    """
    if shutil.which("node") is None:
        raise PackageMissing("node is not installed\ninstall Node 18 or newer to measure")
    cache = cache_folder("node")
    places = [Path.cwd() / "node_modules", cache / "node_modules"]
    if node_modules is not None:
        places = [Path(node_modules)]
    for place in places:
        if (place / PACKAGE / _ENTRY).is_file():
            return (place / PACKAGE).resolve()
    where = "; ".join(map(str, places))
    raise PackageMissing(
        f"{PACKAGE} is not installed in {where}\nnpm install --prefix {cache} {PACKAGE}"
    )


def package_version(package: Path) -> str:
    """The version of the installed onnxruntime-web."""
    return str(json.loads((package / "package.json").read_text("utf-8"))["version"])


def time_in_node(
    models: Mapping[str, ir.Model],
    feeds: Mapping[str, Any],
    *,
    seconds: float = 1.0,
    node_modules: str | os.PathLike[str] | None = None,
) -> dict[str, NodeTime]:
    """The time of each model in Node; the first one is what outputs are compared with."""
    package = find_package(node_modules)
    with tempfile.TemporaryDirectory(prefix="onward-node-") as name:
        folder = Path(name)
        paths = {}
        for place, (label, model) in enumerate(models.items()):
            paths[label] = folder / f"{place}.onnx"
            save(model, paths[label])
        job = {
            "library": (package / _ENTRY).as_uri(),
            "models": {label: str(path) for label, path in paths.items()},
            "feeds": [_write_feed(folder, n, feed, i) for i, (n, feed) in enumerate(feeds.items())],
            "folder": str(folder),
            "result": str(folder / "result.json"),
            "seconds": seconds,
        }
        (folder / "job.json").write_text(json.dumps(job), "utf-8")
        _run_node(folder)
        found = json.loads((folder / "result.json").read_text("utf-8"))
        outputs = {label: _read_outputs(found[label]) for label in models}
    first = next((outputs[label] for label in models if outputs[label]), {})
    return {label: _to_time(found[label], outputs[label], first) for label in models}


def _run_node(folder: Path) -> None:
    script = files("onward.compress.edge").joinpath("measure_models.mjs")
    with as_file(script) as path:
        command = ["node", str(path), str(folder / "job.json")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            raise ProviderError(f"Node did not finish within {_LIMIT:g} s") from None
    if done.returncode or not (folder / "result.json").exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProviderError(f"Node failed with exit code {done.returncode}: {last[:300]}")


def _write_feed(folder: Path, name: str, feed: Any, place: int) -> dict[str, Any]:
    array = np.ascontiguousarray(feed)
    file = folder / f"feed-{place}.bin"
    file.write_bytes(array.tobytes())
    return {
        "name": name,
        "type": array.dtype.name,
        "dims": list(array.shape),
        "file": str(file),
    }


def _read_outputs(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.fromfile(file, np.float32) for name, file in found.get("outputs", {}).items()}


def _to_time(
    found: Mapping[str, Any], outputs: Mapping[str, Any], first: Mapping[str, Any]
) -> NodeTime:
    if "error" in found:
        return NodeTime(error=str(found["error"]).splitlines()[0][:300])
    cosines = [_cosine(first[name], outputs[name]) for name in first if name in outputs]
    return NodeTime(
        seconds=float(np.median(found["times"])),
        load_seconds=float(found["loadSeconds"]),
        similarity=min(cosines, default=None),
    )


def _cosine(y: Any, z: Any) -> float:
    if y.shape != z.shape:
        return 0.0
    a, b = y.astype(np.float64), z.astype(np.float64)
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / length) if length else float(np.array_equal(a, b))
