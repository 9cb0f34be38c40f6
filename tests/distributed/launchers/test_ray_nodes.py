"""A run on the machines of a Ray cluster; it needs Ray, here or with ONWARD_RAY_PYTHON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onward.distributed.launchers.ray_nodes import run_on_ray
from onward.errors import PackageMissing

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("ONWARD_RAY_PYTHON", sys.executable)
SCRIPT = """
import os, sys
from torch import distributed as dist
import torch
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"SUM {total.item():.0f} of rank {dist.get_rank()}", flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(9 if sys.argv[1] == "fail" and os.environ["RANK"] == "1" else 0)
"""


@pytest.mark.slow  # a cluster takes 10 seconds to start
def test_a_run_on_two_machines_of_a_cluster(tmp_path: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import ray"], capture_output=True).returncode:
        pytest.skip("Ray is not installed: pip install ray")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("ray_cluster.py"), tmp_path / "script.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    codes = [line for line in done.stdout.splitlines() if line.startswith(("CODE", "REFUSED"))]
    assert codes[:2] == ["CODE 0", "CODE 9"], done.stdout
    assert codes[2].startswith("REFUSED the Ray cluster has no 3 free machines with 1 CPUs")
    assert {f"SUM 2 of rank {rank}" in done.stdout for rank in range(2)} == {True}


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PackageMissing, match="Ray is not installed"):
        run_on_ray(["train"], nodes=1, nproc=1)
