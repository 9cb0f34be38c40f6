"""Ranks: which process of how many this one is, from the variables that its launcher set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onward.errors import OptionError


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of a run, and among those of its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str


# launcher: rank, size, local rank, local size
_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}


def find_ranks(variables: Mapping[str, str]) -> Ranks | None:
    """The rank that a launcher gave to this process; None: it was started without one.

    >>> find_ranks({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Ranks(rank=1, size=2, local_rank=1, local_size=2, launcher='torchrun')
    """
    for launcher, (rank, size, local_rank, local_size) in _VARIABLES.items():
        if rank in variables and size in variables:
            numbers = [variables[rank], variables[size]]
            numbers += [variables.get(local_rank, "0"), variables.get(local_size, "1")]
            if not all(number.isdigit() for number in numbers):
                raise OptionError(
                    f"{launcher} set {rank}={numbers[0]} and {size}={numbers[1]}: not numbers\n"
                    "unset them, or start the run with `onward launch`"
                )
            own, all_ranks, local, of_machine = map(int, numbers)
            return Ranks(own, all_ranks, local, of_machine, launcher)
    return None
