"""Join the processes that a launcher started for `onward train`, if it did."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onward.distributed.launchers.ranks import find_ranks
from onward.distributed.named_parallel import read_parallel
from onward.distributed.parallel import Parallel
from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.runner.team import ALONE, Team

if TYPE_CHECKING:
    from onward.distributed import process_groups, team
else:  # they import torch, which a run in one process does not need
    process_groups = LazyModule("onward.distributed.process_groups")
    team = LazyModule("onward.distributed.team")

_NO_NAME = "none"  # of a job that torchrun was given no name for


def join_team(settings: Mapping[str, Any], parallel: Parallel | None = None) -> Team:
    """The team of this process: those that were started with it, or only this one.

    `settings` are those of TrainConfig; `parallel` replaces them.
    """
    size = _count_processes()
    alone = size is None or size == 1
    if parallel is None and alone and not settings.get("logical_shards"):
        if settings.get("shard", 1) > 1:
            raise OptionError(
                f"shard={settings['shard']} needs as many processes, but there is one\n"
                f"start them: --nproc {settings['shard']}, torchrun, mpirun or srun"
            )
        return ALONE
    if parallel is None and size is None:
        raise OptionError(
            "logical_shards needs a launcher, but this process was started without one\n"
            "start it with --nproc 1, torchrun, mpirun or srun"
        )
    groups = process_groups.join_groups(read_parallel(settings) if parallel is None else parallel)
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return team.ProcessTeam(
        groups,
        launch=None if name == _NO_NAME else name,
        restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
    )


def _count_processes() -> int | None:
    """How many processes were started together; None: this one was started without a launcher."""
    distributed = sys.modules.get("torch.distributed")  # a script may have joined a group itself
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    ranks = find_ranks(os.environ)
    return None if ranks is None else ranks.size
