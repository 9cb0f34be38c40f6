"""TrainingJob: what a cluster must know of a training run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from onward.distributed.launchers.launched_command import LaunchedCommand
from onward.errors import OptionError
from onward.settings import (
    check_fields,
    explain_frozen,
    explain_keywords,
    instance_of,
    integer,
    optional,
)

_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"  # a DNS label of RFC 1035
_LONGEST_NAME = 47  # that of a RayJob; Kubernetes adds to it and allows 63
_MEMORY = r"(\d+)\s*([KMGT])i?B?"
_VOLUME = r"([^\s:]+)(?::(/[^\s:]*))?"


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What a cluster must know of a training run.

    Attributes:
        name: of the job
        command: what each process runs
        image: of the containers; None is only for Slurm: what is installed on its machines
        nodes: machines
        nproc: processes on each
        gpus: GPUs of each machine
        cpus: cores of each machine
        memory: of each machine, such as 64Gi
        volume: where runs are kept: a claim of Kubernetes or a folder of Slurm's machines, and
            after a colon its path for the processes, /runs by default
        max_restarts: how often all processes start again after one failed
        namespace: of Kubernetes; None: that of kubectl
    """

    name: str
    command: LaunchedCommand
    image: str | None = None
    nodes: int = 1
    nproc: int = 1
    gpus: int = 0
    cpus: int = 1
    memory: str = "4Gi"
    volume: str | None = None
    max_restarts: int = 3
    namespace: str | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            name=_label,
            command=instance_of(LaunchedCommand, "read_command(['train', 'model.onnx'])"),
            image=optional(_image),
            nodes=integer(1),
            nproc=integer(1),
            gpus=integer(0),
            cpus=integer(1),
            memory=_memory,
            volume=optional(_volume),
            max_restarts=integer(0),
            namespace=optional(_label),
        )

    @property
    def mount(self) -> tuple[str, str] | None:
        """The volume, and its path for the processes."""
        if self.volume is None:
            return None
        source, _, path = self.volume.partition(":")
        return source, path or "/runs"


def required_image(job: TrainingJob, target: str) -> str:
    """The image of a job that runs in containers."""
    if job.image is None:
        raise OptionError(f"a {target} runs in containers, and there is no image\ngive --image")
    return job.image


def claim_of(job: TrainingJob) -> str | None:
    """The claim of a job's volume, which Kubernetes must know by a name of its own."""
    if job.mount is None:
        return None
    claim = job.mount[0]
    if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", claim) or len(claim) > 253:
        raise OptionError(
            f"--volume {claim!r} is not the name of a PersistentVolumeClaim\n"
            "its name has only lower-case letters, digits, - and .; such as runs or runs:/runs"
        )
    return claim


def _label(name: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not re.fullmatch(_NAME, value, re.ASCII)
        or len(value) > _LONGEST_NAME
    ):
        raise OptionError(
            f"{name} {value!r} is not a name of Kubernetes: only lower-case letters, digits and -,"
            f" a letter first, no - last, at most {_LONGEST_NAME} characters\nsuch as digits-1"
        )
    return value


def _image(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[^\s'\"]{1,500}", value):
        raise OptionError(f"{name} {value!r} is not the name of an image\nsuch as team/train:1.2")
    return value


def _memory(name: str, value: Any) -> str:
    """As Kubernetes writes it: 64GiB and 64G become 64Gi."""
    found = re.fullmatch(_MEMORY, value, re.ASCII) if isinstance(value, str) else None
    if found is None or int(found[1]) == 0:
        raise OptionError(f"{name} must be a size such as 64Gi, not {value!r}")
    return f"{int(found[1])}{found[2]}i"


def _volume(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_VOLUME, value):
        raise OptionError(f"{name} {value!r} is not a volume\nsuch as runs or runs:/runs")
    return value
