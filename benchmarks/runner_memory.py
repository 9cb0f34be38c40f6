"""Memory of `onward train` over an epoch of a file that is larger than the memory limit.

    python benchmarks/runner.py --memory [MEGABYTES [LIMIT]]    # 2048 of data, 1024 of memory

The data is two .npy files, which are memory-mapped. The limit
is RLIMIT_DATA: what the process allocates itself; pages of the file that lie in memory are the
system's, which drops them when it needs them, so they are told separately.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import racing
import report

FEATURES, BATCH, CHUNK = 1024, 1024, 1 << 16
MB = 1 << 20


def memory() -> tuple[float, float]:
    """MB that are this process's own, and MB of mapped files, in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    own, files = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return own, files


def write_data(folder: Path, megabytes: int) -> None:
    """x.npy and label.npy, some rows at a time."""
    rows = megabytes * MB // (FEATURES * 4)
    shape = (rows, FEATURES)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, shape)
    rng = np.random.default_rng(0)
    some = rng.normal(size=(CHUNK // 16, FEATURES)).astype(np.float32)
    for start in range(0, rows, len(some)):
        x[start : start + len(some)] = some[: rows - start]
    x.flush()
    np.save(folder / "label.npy", rng.integers(0, 10, rows))


def one(folder: str, limit: str) -> None:
    """In a child: train an epoch under the limit, and print the memory at some steps."""
    import resource

    import onward
    from onward.runner.architectures.new_model import new_model
    from onward.runner.callback import Callback

    resource.setrlimit(resource.RLIMIT_DATA, (int(limit) * MB, int(limit) * MB))
    points: list[tuple[int, float, float]] = []

    class Sample(Callback):
        def on_step(self, run: Any, step: Any) -> None:
            if step.number % max(run.plan.steps // 20, 1) == 0:
                points.append((step.number, *memory()))

    where = Path(folder)
    onward.save(new_model("mlp", features=FEATURES, hidden=(32,)), where / "model.onnx")
    onward.train(
        where / "model.onnx", where / "data", target="label", epochs=1, batch_size=BATCH,
        validation_split=0.0, standardize=False, threads=2, runs=str(where / "runs"),
        callbacks=[Sample()],
    )  # fmt: skip
    print(json.dumps(points))


def main() -> None:
    megabytes, limit = (*map(int, sys.argv[2:4]), *(2048, 1024)[len(sys.argv[2:4]) :])
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free // MB
        if free < 2 * megabytes:
            raise SystemExit(f"{folder} has {free} MB free: the data needs {megabytes}")
        racing.tell(f"{megabytes} MB of data")
        (Path(folder) / "data").mkdir()
        write_data(Path(folder) / "data", megabytes)
        racing.tell(f"an epoch under a limit of {limit} MB")
        words = [sys.executable, str(Path(__file__).resolve()), folder, str(limit)]
        made = subprocess.run(words, capture_output=True, text=True)
    if made.returncode:
        raise SystemExit(made.stderr)
    points = json.loads(made.stdout.splitlines()[-1])
    rows = [dict(zip(("step", "own_mb", "files_mb"), point)) for point in points]
    for when, row in zip(("start", "middle", "end"), (rows[0], rows[len(rows) // 2], rows[-1])):
        numbers = f"{row['own_mb']:6.0f} MB of its own, {row['files_mb']:6.0f} MB of mapped files"
        print(f"{when:6} step {row['step']:6}: {numbers}")
    growth = rows[-1]["own_mb"] / rows[0]["own_mb"] - 1
    print(f"growth from the first to the last: {growth:+.1%}")
    more = {"data_mb": megabytes, "limit_mb": limit, "growth": growth}
    print("written to", report.write("runner-memory", rows, None, **more))


if __name__ == "__main__":
    one(*sys.argv[1:])
