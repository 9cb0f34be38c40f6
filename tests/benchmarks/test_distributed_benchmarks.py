"""The benchmarks of distributed training run, on few processes and for a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run_benchmark(script: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_distributed_measures_every_engine_and_scaling_reads_its_rows(tmp_path: Path) -> None:
    found, curves = tmp_path / "distributed.json", tmp_path / "scaling.json"
    table = run_benchmark("distributed.py", "--small", "--ranks", "1,2", "--output", str(found))
    assert "hidden" in table and "times as fast as fsdp2" in table
    rows: list[dict[str, Any]] = json.loads(found.read_text())["rows"]
    measured = {(row["engine"], row["processes"]): row for row in rows}
    assert {*measured} == {("ours", 1), *((e, 2) for e in ("ours", "ours-zero3", "ddp", "fsdp2"))}
    ours = measured["ours", 2]
    assert 0 <= ours["hidden"] <= 1 and ours["communication_ms"] > 0
    assert ours["bytes_sent"] >= 4 * (784 * 256 + 256 * 256 + 256 * 10)  # 2 B (n - 1) / n
    losses = [row["loss"] for row in rows if row["processes"] == 2]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    assert "1024" in run_benchmark("scaling.py", str(found), "--output", str(curves))
    assert json.loads(curves.read_text())["curves"]
    assert curves.with_suffix(".svg").read_text().startswith("<svg")
