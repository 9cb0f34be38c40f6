"""Start the processes of a run on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence


def run_local(
    command: Sequence[str], nproc: int, *, variables: Mapping[str, str], max_restarts: int = 0
) -> int:
    """Run a command of Python in several processes of this machine; the exit code of the run."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    start += [f"--nproc-per-node={nproc}", f"--max-restarts={max_restarts}"]
    start += ["--monitor-interval=0.1"]
    # with a store that outlives them, processes that start again find the addresses of the dead
    own = {**variables, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.run([*start, "--", *command], env=own).returncode
