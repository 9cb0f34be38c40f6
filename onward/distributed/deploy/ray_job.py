"""A RayJob of KubeRay, which makes a Ray cluster, runs a command on it, and removes it."""

from __future__ import annotations

import shlex

from onward.distributed.deploy.containers import Part, metadata, resources, volumes
from onward.distributed.deploy.training_job import TrainingJob, required_image

_KEPT = 600  # seconds that the pods are kept after the end, for their logs
_HEAD = (1, "2Gi", 0)  # cores, memory and GPUs of the pod that runs Ray's own services


def ray_job(job: TrainingJob) -> Part:
    """A RayJob with one pod for Ray's own services and one for each machine of the run."""
    image = required_image(job, "RayJob")
    head = _pod(job, "ray-head", image, resources(*_HEAD))
    worker = _pod(job, "ray-worker", image, resources(job.cpus, job.memory, job.gpus))
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(job),
        "spec": {
            "entrypoint": entrypoint(job),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEPT,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},  # no process of the run runs there
                    "template": head,
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": job.nodes,
                        "minReplicas": job.nodes,
                        "maxReplicas": job.nodes,
                        "rayStartParams": {},
                        "template": worker,
                    }
                ],
            },
        },
    }


def entrypoint(job: TrainingJob) -> str:
    """The command that starts the run on the machines of a Ray cluster."""
    words = ["onward", "launch", "--ray", "--nodes", str(job.nodes), "--nproc", str(job.nproc)]
    words += ["--max-restarts", str(job.max_restarts), "--cpus", str(job.cpus)]
    if job.gpus:
        words += ["--gpus", str(job.gpus)]
    return shlex.join([*words, *job.command.as_given()])


def _pod(job: TrainingJob, name: str, image: str, needs: Part) -> Part:
    found, mounts = volumes(job)
    container = {"name": name, "image": image, "resources": needs, "volumeMounts": mounts}
    return {"spec": {"containers": [container], "volumes": found}}
