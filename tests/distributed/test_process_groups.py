"""Joining a run: its address, its backend, and what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import join_groups
from onward.errors import DistributedError, OptionError


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a run of two machines whose process 0 does not listen."""
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("backend", ["nope", "cpu:gloo,cuda:nope", ""])
def test_a_backend_that_torch_lacks(backend: str) -> None:
    with pytest.raises(OptionError, match=r"torch\.distributed has no backend") as caught:
        join_groups(Parallel(backend=backend))
    assert "gloo, nccl" in str(caught.value)


def test_a_run_that_no_process_joins() -> None:
    with pytest.raises(
        DistributedError, match=r"process 1 of 2 could not join the run at 127"
    ) as e:
        join_groups(Parallel(timeout=0.5))
    assert "check the address, the port and the backend 'gloo'" in str(e.value)


def test_incomplete_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(OptionError, match="RANK and WORLD_SIZE are set, and MASTER_PORT is not"):
        join_groups(Parallel())


_JOIN_AND_END = """
import atexit, glob
from torch import distributed
def show():
    names = [open(name).read() for name in glob.glob("/proc/self/task/*/comm")]
    print("initialized:", distributed.is_initialized(), sum("gloo" in name for name in names))
atexit.register(show)
from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import join_groups
groups = join_groups(Parallel())  # a global of the script: it lives until the end
groups.whole.barrier()
"""


def test_a_process_leaves_its_group_before_python_ends() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(free.getsockname()[1])}
    ended = subprocess.run(
        [sys.executable, "-c", _JOIN_AND_END],
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        check=True,
    )
    # a thread of gloo that lives on may abort the process while Python ends
    assert ended.stdout == "initialized: False 0\n"
