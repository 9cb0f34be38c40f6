"""Ranks from the variables of launchers, and the address at which their processes meet."""

from __future__ import annotations

import pytest

from onward.distributed.launchers.meeting_point import find_meeting_point
from onward.distributed.launchers.ranks import Ranks, find_ranks
from onward.distributed.launchers.slurm import expand_hosts, tasks_of_node
from onward.errors import OptionError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-vm-2814@1",
}
MPIEXEC = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "11",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_TASKS_PER_NODE": "4(x2),3",
    "SLURM_JOB_NODELIST": "node[08-10]",
}
PLAIN_SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4(x2)"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, Ranks(5, 8, 1, 4, "torchrun")),
        (MPIRUN, Ranks(1, 2, 1, 2, "mpirun")),
        (MPIEXEC, Ranks(3, 4, 1, 2, "mpiexec")),
        (SRUN, Ranks(9, 11, 1, 3, "srun")),
        ({**PLAIN_SRUN, "SLURM_LOCALID": "1"}, Ranks(1, 8, 1, 4, "srun")),
        (
            {
                "MV2_COMM_WORLD_RANK": "0",
                "MV2_COMM_WORLD_SIZE": "2",
                "MV2_COMM_WORLD_LOCAL_RANK": "0",
                "MV2_COMM_WORLD_LOCAL_SIZE": "1",
            },
            Ranks(0, 2, 0, 1, "mpiexec"),
        ),
        # torchrun, or mpiexec, inside of srun
        ({**SRUN, **TORCHRUN}, Ranks(5, 8, 1, 4, "torchrun")),
        ({**SRUN, **MPIEXEC}, Ranks(3, 4, 1, 2, "mpiexec")),
        # srun --mpi=pmi2: it knows the place on the machine, PMI does not
        ({**SRUN, "PMI_RANK": "9", "PMI_SIZE": "11"}, Ranks(9, 11, 1, 3, "srun")),
        # no place on the machine: as though all were on one
        ({"RANK": "1", "WORLD_SIZE": "4"}, Ranks(1, 4, 1, 4, "torchrun")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, Ranks(1, 4, 1, 4, "mpiexec")),
        # started without a launcher: nothing, a shell of salloc, the script of sbatch
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
    ],
)
def test_ranks_of_each_launcher(variables: dict[str, str], expected: Ranks | None) -> None:
    assert find_ranks(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK is set, and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is set, and RANK is not"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not: the variables of mpirun"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE is set, and PMI_RANK is not"),
        ({"SLURM_PROCID": "0"}, "SLURM_PROCID is set, and SLURM_STEP_NUM_TASKS is not"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK is set, and no variable has the number of processes"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "torchrun set RANK='x', which is not a number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1', which is not a number"),
        ({"RANK": "²", "WORLD_SIZE": "2"}, "which is not a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2.*below its size"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "on its machine 4 of 4"),
        ({**SRUN, "SLURM_TASKS_PER_NODE": "4(y2)"}, r"which is not like 4\(x2\),3"),
    ],
)
def test_incomplete_or_wrong_variables(variables: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        find_ranks(variables)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-03,7],gpu5", ["node01", "node02", "node03", "node7", "gpu5"]),
        ("rack[1-2]n[08-09]-ib", ["rack1n08-ib", "rack1n09-ib", "rack2n08-ib", "rack2n09-ib"]),
        ("a.b.c, me@d-e", ["a.b.c", "me@d-e"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_hosts_of_slurm(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "node[", "node[a-b]", "node[3-1]", "a b", "n[1-9999999]", "a,["]
)
def test_invalid_lists_of_hosts(text: str) -> None:
    with pytest.raises(OptionError, match="is not a list of hosts"):
        expand_hosts(text)


def test_tasks_of_a_node_beyond_the_list() -> None:
    given = {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NODEID": "3"}
    assert tasks_of_node("SLURM_NTASKS_PER_NODE", given) == 4


def meet(variables: dict[str, str]) -> tuple[str, int]:
    ranks = find_ranks(variables)
    assert ranks is not None
    return find_meeting_point(variables, ranks)


def test_slurm_meets_at_its_first_host_at_a_port_of_the_step() -> None:
    host, port = meet(SRUN)
    assert host == "node08" and port == 20000 + (123456 + 202) % 12000
    assert meet({**SRUN, "SLURM_STEP_ID": "3"})[1] != port
    assert meet({**SRUN, "MASTER_ADDR": "10.0.0.1"}) == ("10.0.0.1", port)
    assert meet({**SRUN, "MASTER_PORT": "5"}) == ("node08", 5)


def test_mpirun_on_one_machine_meets_at_a_port_of_the_run() -> None:
    host, port = meet(MPIRUN)
    assert host == "127.0.0.1" and 20000 <= port < 32000
    other = {**MPIRUN, "PMIX_NAMESPACE": "prterun-vm-2815@1"}
    assert meet({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"}) == (host, port) != meet(other)
    without = {name: value for name, value in MPIRUN.items() if name != "PMIX_NAMESPACE"}
    assert meet(without) == ("127.0.0.1", 29500)


def test_mpi_on_several_machines_needs_an_address() -> None:
    several = {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(OptionError, match=r"several machines, and MASTER_ADDR is not set.*\n.*-x"):
        meet(several)
    with pytest.raises(OptionError, match="pass it on: mpiexec -genv MASTER_ADDR HOST"):
        meet(MPIEXEC)
    assert meet({**several, "MASTER_ADDR": "node1", "MASTER_PORT": "29501"}) == ("node1", 29501)


def test_torchrun_needs_address_and_port() -> None:
    with pytest.raises(OptionError, match="MASTER_ADDR is not"):
        meet(TORCHRUN)
    with pytest.raises(OptionError, match="MASTER_PORT is not"):
        meet({**TORCHRUN, "MASTER_ADDR": "node1"})
    with pytest.raises(OptionError, match="MASTER_PORT is 'x'"):
        meet({**TORCHRUN, "MASTER_ADDR": "node1", "MASTER_PORT": "x"})
    assert meet({**TORCHRUN, "MASTER_ADDR": "a", "MASTER_PORT": "70"}) == ("a", 70)
