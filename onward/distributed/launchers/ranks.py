"""Ranks: which process of how many this one is, from the variables that its launcher set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onward.distributed.launchers.slurm import is_batch_script, tasks_of_node
from onward.errors import OptionError

Variables = Mapping[str, str]


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of a run, and among those of its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str


@dataclass(frozen=True)
class _Names:
    """The variables of a launcher; where there are several for a number, the first one wins."""

    launcher: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]


_LAUNCHERS = [
    _Names("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Names(
        "mpirun",  # Open MPI
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Names(
        "mpiexec",  # MPICH, Intel MPI, MVAPICH
        ("PMI_RANK", "MV2_COMM_WORLD_RANK"),
        ("PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
        ("MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Names(
        "srun",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ),
]


def find_ranks(variables: Variables) -> Ranks | None:
    """The rank that a launcher gave to this process; None: it was started without one.

    A launcher that set all four numbers is preferred: torchrun may run inside of srun, and
    mpiexec starts its own processes with srun. Where the place on the machine is not given, all
    processes count as being on one machine.

    >>> find_ranks({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Ranks(rank=1, size=2, local_rank=1, local_size=2, launcher='torchrun')
    """
    in_batch = is_batch_script(variables)
    known = [names for names in _LAUNCHERS if not (names.launcher == "srun" and in_batch)]
    with_rank = [names for names in known if _given(names.rank, variables)]
    both = [names for names in with_rank if _given(names.size, variables)]
    whole = [names for names in both if _given(names.local_rank, variables)]
    placed = [names for names in whole if _given(names.local_size, variables)]
    for names in (*placed, *whole, *both):
        return _read(names, variables)
    _refuse_a_part(known, variables)
    return None


def _given(names: tuple[str, ...], variables: Variables) -> str | None:
    """The first of these variables that is set."""
    return next((name for name in names if variables.get(name)), None)


def _read(names: _Names, variables: Variables) -> Ranks:
    rank_name, size_name = _given(names.rank, variables), _given(names.size, variables)
    assert rank_name and size_name
    rank, size = _number(names, rank_name, variables), _number(names, size_name, variables)
    local_rank, local_size = rank, size
    if name := _given(names.local_rank, variables):
        local_rank = _number(names, name, variables)
    if name := _given(names.local_size, variables):
        local_size = (
            tasks_of_node(name, variables)
            if names.launcher == "srun"
            else _number(names, name, variables)
        )
    if rank >= size or local_rank >= local_size or local_size > size:
        raise OptionError(
            f"{names.launcher} set {rank_name}={rank} of {size_name}={size}, on its machine "
            f"{local_rank} of {local_size}: a rank must be below its size\n"
            "unset them, or start the run with `onward launch`"
        )
    return Ranks(rank, size, local_rank, local_size, names.launcher)


def _number(names: _Names, name: str, variables: Variables) -> int:
    text = variables[name].strip()
    if not text.isascii() or not text.isdigit():
        raise OptionError(
            f"{names.launcher} set {name}={variables[name]!r}, which is not a number\n"
            "unset it, or start the run with `onward launch`"
        )
    return int(text)


def _refuse_a_part(known: list[_Names], variables: Variables) -> None:
    """Refuse a rank without a size, and a size without a rank."""
    for names in known:
        rank, size = _given(names.rank, variables), _given(names.size, variables)
        if names.launcher == "srun" and rank is None:
            continue  # a shell of salloc: it is not a task
        if (rank is None) != (size is None):
            missing = names.size[0] if size is None else names.rank[0]
            raise OptionError(
                f"{rank or size} is set, and {missing} is not: the variables of {names.launcher} "
                f"are incomplete\nset {missing}, or start the run with `onward launch`"
            )
    if variables.get("PMIX_RANK"):
        raise OptionError(
            "PMIX_RANK is set, and no variable has the number of processes\n"
            "set WORLD_SIZE to it, and RANK to the value of PMIX_RANK, in each process"
        )
