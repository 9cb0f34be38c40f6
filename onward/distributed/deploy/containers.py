"""What the containers of Kubernetes jobs have in common: resources and volumes."""

from __future__ import annotations

from typing import Any

from onward.distributed.deploy.training_job import TrainingJob, claim_of

_GPU = "nvidia.com/gpu"
Part = dict[str, Any]


def resources(cpus: int, memory: str, gpus: int) -> Part:
    """What a container asks for, and gets at most."""
    needs: Part = {"cpu": str(cpus), "memory": memory}
    if gpus:
        needs[_GPU] = str(gpus)
    return {"requests": needs, "limits": dict(needs)}


def volumes(job: TrainingJob) -> tuple[list[Part], list[Part]]:
    """The volumes of a pod, and where its container mounts them.

    Processes of one machine exchange tensors in /dev/shm, for which containers have 64 MiB
    unless it is a volume in memory.
    """
    found: list[Part] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    mounts: list[Part] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    claim = claim_of(job)
    if claim is not None and job.mount is not None:
        found.append({"name": "runs", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "runs", "mountPath": job.mount[1]})
    return found, mounts


def metadata(job: TrainingJob) -> Part:
    """The name of a job, and its namespace if it has one."""
    named = {"name": job.name}
    return named if job.namespace is None else {**named, "namespace": job.namespace}
