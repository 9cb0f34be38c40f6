"""The address and the port at which the processes of a run meet."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from onward.distributed.launchers.ranks import Ranks
from onward.distributed.launchers.slurm import slurm_meeting_point
from onward.errors import OptionError

_PORT = 29500  # that of torch.distributed
_FIRST_PORT, _PORTS = 20_000, 12_000  # below the ports that Linux gives to outgoing connections
# what all processes of one mpirun have in common, and another mpirun on the machine has not
_RUN_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_PORT")
_PASS_ON = {
    "mpirun": "pass it on: mpirun -x MASTER_ADDR=HOST ..., with the host of rank 0",
    "mpiexec": "pass it on: mpiexec -genv MASTER_ADDR HOST ..., with the host of rank 0",
}


def find_meeting_point(variables: Mapping[str, str], ranks: Ranks) -> tuple[str, int]:
    """The address and port of process 0: MASTER_ADDR and MASTER_PORT, or the launcher's.

    Slurm gives the hosts of a step. MPI does not, so that runs on several machines need
    MASTER_ADDR.
    """
    address, port = variables.get("MASTER_ADDR", "").strip(), _given_port(variables)
    if ranks.launcher == "torchrun" and not (address and port):
        missing = "MASTER_PORT" if address else "MASTER_ADDR"
        raise OptionError(
            f"RANK and WORLD_SIZE are set, and {missing} is not\n"
            "set it to that of process 0, or start the run with torchrun or `onward launch`"
        )
    if ranks.launcher == "srun" and (found := slurm_meeting_point(variables)):
        return address or found[0], port or found[1]
    if not address and ranks.local_size < ranks.size:
        raise OptionError(
            f"{ranks.launcher} started processes on several machines, and MASTER_ADDR is not set: "
            f"they do not know where to meet\n"
            f"{_PASS_ON.get(ranks.launcher, 'set it to the host of rank 0 on every machine')}"
        )
    return address or "127.0.0.1", port or _port_of_run(variables)


def _given_port(variables: Mapping[str, str]) -> int:
    """MASTER_PORT; 0 if it is not set."""
    text = variables.get("MASTER_PORT", "").strip()
    if text and not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise OptionError(
            f"MASTER_PORT is {text!r}\nset it to a free port of process 0, such as {_PORT}"
        )
    return int(text or 0)


def _port_of_run(variables: Mapping[str, str]) -> int:
    """A port that all processes of an mpirun choose alike, and other runs most likely do not."""
    name = next((variables[name] for name in _RUN_NAMES if variables.get(name)), None)
    return _PORT if name is None else _FIRST_PORT + zlib.crc32(name.encode()) % _PORTS
