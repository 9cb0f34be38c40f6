"""Planned and measured memory: what opening and running a model adds to a process.

    python benchmarks/memory.py              # the table, and a file under benchmarks/results/
    python benchmarks/memory.py mlp magika   # only models whose name begins so
    python benchmarks/memory.py --torch      # planned for torch instead of onnxruntime

The plan knows the sizes of the inputs only, and runs with random feeds; the measurement runs with
the model's own feeds, in another process (docs/memory.md says what exactly is measured). The two
ratios show how well they agree; `estimate_kb` is what the graph alone shows to be alive at once.
The last table is what sharing saves: one model opened 1, 2 and 4 times, with and without
`onward.SharedMemory`.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import models
import numpy as np
import report
from rich.console import Console
from rich.table import Table

import onward
from onward.measure.memory import resident_memory

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"
SHARED_BY = (1, 2, 4)


def model(name: str, folder: Path) -> tuple[Path, models.Feeds]:
    """A model's file and feeds; a real one as it is, its sizes those of the feeds."""
    if name in models.BUILT:
        return models.write(name, folder)
    (real,) = (entry for entry in models.catalog.MODELS if entry.name == name)
    path = Path(real.path())
    return path, real.feeds(onward.InferenceSession(path, providers=[CPU]))


def dynamic_sizes(path: Path, feeds: models.Feeds) -> dict[str, int]:
    """The size of each dynamic dimension, by input and place, as the feeds have it."""
    session = onward.InferenceSession(path, providers=[CPU])
    return {
        f"{arg.name}:{place}": feeds[arg.name].shape[place]
        for arg in session.get_inputs()
        for place, size in enumerate(arg.shape)
        if not isinstance(size, int)
    }


def compare(names: list[str], provider: str) -> list[dict[str, Any]]:
    """Each model: planned, then measured."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path, feeds = model(name, Path(folder))
            plan = onward.plan_memory(path, dynamic_sizes(path, feeds), [provider])
            measured = onward.measure_memory(path, feeds, [provider])
            rows.append(
                {
                    "model": name,
                    "weights_kb": plan.weights // 1024,
                    "opening_kb": plan.opening_peak // 1024,
                    "estimate_kb": (plan.activations or 0) // 1024,
                    "running_kb": plan.running // 1024,
                    "planned_kb": plan.peak // 1024,
                    "measured_kb": measured.peak // 1024,
                    "ratio": plan.peak / measured.peak,
                    "running_ratio": (plan.held + plan.running) / max(measured.running_peaks),
                }
            )
    return rows


def sharing(name: str) -> list[dict[str, Any]]:
    """Bytes of 1, 2 and 4 sessions of one model, each way in a separate process."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path, feeds = model(name, Path(folder))
        data = Path(folder) / "feeds.npz"
        np.savez(data, **feeds)
        for way in ("separate", "shared"):
            command = [sys.executable, __file__, "--sessions", way, str(path), str(data)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            sizes = [int(size) for size in done.stdout.split()]
            rows.append({"model": name, "sessions": way, **dict(zip(map(str, SHARED_BY), sizes))})
    return rows


def open_sessions(way: str, path: str, data: str) -> None:
    """Open and run the model again and again; print the kilobytes that are resident."""
    shared = onward.SharedMemory() if way == "shared" else None
    feeds, sessions, sizes = dict(np.load(data)), [], []
    resident_memory.settle()
    before = resident_memory.resident()
    for count in range(1, max(SHARED_BY) + 1):
        options = onward.SessionOptions(shared=shared)
        sessions.append(onward.InferenceSession(path, options, [CPU]))
        sessions[-1].run(None, feeds)
        sessions[-1].run(None, feeds)
        gc.collect()
        resident_memory.release_free_memory()
        if count in SHARED_BY:
            sizes.append((resident_memory.resident() - before) // 1024)
    print(*sizes)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        cells = (
            f"{v:.3f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v
            for v in row.values()
        )
        table.add_row(*cells)
    Console().print(table)


def main() -> None:
    provider = TORCH if "--torch" in sys.argv else CPU
    wanted = tuple(name for name in sys.argv[1:] if not name.startswith("--"))
    names = [*models.BUILT, *models.REAL]
    chosen = [name for name in names if not wanted or name.startswith(wanted)]
    rows = compare(chosen, provider)
    show(f"planned and measured memory in KB, {provider}", rows)
    if wanted or provider == TORCH:
        return
    shares = sharing("minilm")
    show("KB of several sessions of one model", shares)
    print("written to", report.write("memory", rows, sharing=shares))


if __name__ == "__main__":
    open_sessions(*sys.argv[2:]) if sys.argv[1:2] == ["--sessions"] else main()
