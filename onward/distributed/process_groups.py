"""Join the process groups of a run: all processes, those of a shard, those of equal shards."""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
from torch import distributed as dist

from onward.distributed.communicator import Communicator, release_groups
from onward.distributed.launchers.meeting_point import find_meeting_point
from onward.distributed.launchers.ranks import Ranks, find_ranks
from onward.distributed.launchers.rendezvous import show_endpoint
from onward.distributed.launchers.start_worker import end_with_parent
from onward.distributed.lost_peers import PeerProcess, this_process
from onward.distributed.mpi_group import register_mpi_backend
from onward.distributed.parallel import Parallel
from onward.errors import DistributedError, OptionError
from onward.message_text import first_line

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a user's own compression without a repr

_LEAVE_SECONDS = 5.0

Processes = Sequence[PeerProcess]  # by rank


@dataclass(frozen=True)
class ProcessGroups:
    """The groups that this process is in.

    With data=2 and shard=2: `whole` is ranks 0 to 3, `shards` [0, 1] or [2, 3], whose processes
    hold one copy of the model, `copies` [0, 2] or [1, 3], whose processes hold equal shards.
    """

    ranks: Ranks
    parallel: Parallel
    whole: Communicator
    shards: Communicator
    copies: Communicator


def join_groups(parallel: Parallel) -> ProcessGroups:
    """Join the run that this process was started for, once in its life."""
    ranks = find_ranks(os.environ)
    if ranks is None and not dist.is_initialized():
        raise OptionError(
            "Parallel needs a launcher, but this process was started without one\n"
            "start it with: onward launch --nproc 2 SCRIPT, or torchrun, mpirun, srun"
        )
    if not dist.is_initialized():
        assert ranks is not None
        _initialize(parallel, ranks)
    size = dist.get_world_size()
    parallel = parallel.over(size)
    found = ranks or Ranks(dist.get_rank(), size, 0, 1, "torch.distributed")
    processes = _exchange_facts(parallel)
    whole = Communicator(processes=processes)
    shard, copies = parallel.shard, size // parallel.shard
    if shard == 1:
        return ProcessGroups(found, parallel, whole, _alone(processes), whole)
    if copies == 1:
        return ProcessGroups(found, parallel, whole, whole, _alone(processes))
    rows = [list(range(i * shard, (i + 1) * shard)) for i in range(copies)]
    columns = [list(range(i, size, shard)) for i in range(shard)]
    subgroups = [_subgroup(each, processes) for each in (rows, columns)]
    return ProcessGroups(found, parallel, whole, *subgroups)


def _exchange_facts(parallel: Parallel) -> list[PeerProcess]:
    """Who the processes are, by rank; refused if they would share the work in different ways."""
    everyone = Communicator()
    comparable = replace(parallel, timeout=1.0, backend="")  # what each may choose for itself
    settings = _ADDRESS.sub("", repr(comparable))
    facts = everyone.gather_objects((this_process(), settings, repr(parallel)))
    own = everyone.rank
    for rank, (_, other, shown) in enumerate(facts):
        if other != settings:
            raise DistributedError(
                f"process {own} has {parallel!r}, but process {rank} has {shown}\n"
                "give every process the same Parallel"
            )
    return [process for process, *_ in facts]


def _alone(processes: Processes) -> Communicator:
    """A group of only this process."""
    return _subgroup([[rank] for rank in range(dist.get_world_size())], processes)


def _subgroup(groups: list[list[int]], processes: Processes) -> Communicator:
    """The one of these groups that this process is in; every process makes all of them."""
    own, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
    return Communicator(own, processes)


def _initialize(parallel: Parallel, ranks: Ranks) -> None:
    backend = parallel.backend
    if backend == "auto":
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(ranks.local_rank % torch.cuda.device_count())
    where = show_endpoint(*find_meeting_point(os.environ, ranks))
    if "TORCHELASTIC_RUN_ID" in os.environ:  # an agent is the parent
        end_with_parent()
    if "mpi4py" in backend:
        register_mpi_backend()
    _check_backend(backend)
    try:
        dist.init_process_group(
            backend,
            init_method="env://" if ranks.launcher == "torchrun" else f"tcp://{where}",
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=timedelta(seconds=parallel.timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise DistributedError(
            f"process {ranks.rank} of {ranks.size} could not join the run at {where}: "
            f"{first_line(error)}\ncheck the address, the port and the backend "
            f"{backend!r} on every machine"
        ) from error
    atexit.register(_leave)


def _leave() -> None:
    """End the threads of the process group before those of Python.

    A thread of gloo may hold the tensor of a collective that has ended a moment ago; if it releases
    it after Python has ended, the process aborts. The threads end with the last reference to their
    group, and a session that a script still has holds one. A collective that others will not join
    any more keeps its thread until the timeout: the process does not wait for that one.
    """
    if dist.is_initialized():
        release_groups()
        thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
        thread.start()
        thread.join(_LEAVE_SECONDS)


def _check_backend(backend: str) -> None:
    """Refuse a name that torch.distributed does not know, alone or in cpu:NAME,cuda:NAME."""
    known = [name for name in dist.Backend.backend_list if name != dist.Backend.UNDEFINED]
    for part in backend.split(","):
        name = part.rpartition(":")[2]
        if name.lower() not in known:
            raise OptionError(
                f"Parallel.backend: torch.distributed has no backend {name!r}\n"
                f"it has {', '.join(known)}; import the package of another one first"
            )
