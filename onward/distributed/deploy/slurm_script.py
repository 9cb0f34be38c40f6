"""A script for sbatch, which runs torchrun on each machine."""

from __future__ import annotations

import shlex

from onward.distributed.deploy.training_job import TrainingJob
from onward.distributed.launchers.rendezvous import RendezvousTimes

_SAVE = 120  # seconds before the time limit, at which the processes get a signal to save and stop


def slurm_script(job: TrainingJob) -> str:
    """The script, which is submitted again when a machine fails (--requeue)."""
    options = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",  # torchrun, which starts the processes
        "cpus-per-task": str(job.cpus),
        "mem": job.memory.removesuffix("i"),  # Slurm's G is 2^30 bytes
        **({"gpus-per-node": str(job.gpus)} if job.gpus else {}),
        "signal": f"TERM@{_SAVE}",
        "output": "%x-%j.log",
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in options.items())]
    lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append", "", _RENDEZVOUS]
    return "\n".join([*lines, _command(job), ""])


# the first machine, and a port that belongs to this job
_RENDEZVOUS = """\
set -euo pipefail
read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 12000))
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
"""


def _command(job: TrainingJob) -> str:
    """srun, the container if there is one, torchrun with its options, and the command."""
    conf = ",".join(f"{name}={value}" for name, value in RendezvousTimes().to_torch().items())
    parts = ["exec srun --kill-on-bad-exit=1", *_container(job), "torchrun"]
    parts += [
        '--nnodes="$SLURM_JOB_NUM_NODES"',
        f"--nproc-per-node={job.nproc}",
        f"--max-restarts={job.max_restarts}",
        "--rdzv-backend=c10d",
        '--rdzv-endpoint="$head:$port"',
        '--rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
        f"--rdzv-conf={conf}",
        shlex.join(job.command.for_torchrun()),
    ]
    return " \\\n    ".join(parts)


def _container(job: TrainingJob) -> list[str]:
    if job.image is None:
        return []
    gpus = " --nv" if job.gpus else ""
    bind = f" --bind {shlex.quote(':'.join(job.mount))}" if job.mount else ""
    return [f"apptainer exec{gpus}{bind} {shlex.quote(job.image)}"]
