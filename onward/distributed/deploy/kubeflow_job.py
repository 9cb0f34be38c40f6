"""A TrainJob of Kubeflow Trainer, from version 2.2 on."""

from __future__ import annotations

from onward.distributed.deploy.containers import Part, metadata, resources, volumes
from onward.distributed.deploy.training_job import TrainingJob, required_image
from onward.distributed.launchers.rendezvous import RendezvousTimes

_RUNTIME = "torch-distributed"  # a ClusterTrainingRuntime that Kubeflow Trainer installs
_MANAGER = "onward.dev/deploy"
_PLACE = "node"  # its job, and its container
_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # see local_processes.py


def train_job(job: TrainingJob) -> Part:
    """A TrainJob, whose pods run torchrun.

    The controller sets PET_NNODES and PET_NPROC_PER_NODE, which torchrun reads, and the address of
    the first pod.
    """
    image = required_image(job, "TrainJob")
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": _RUNTIME,
            },
            "trainer": {
                "image": image,
                "numNodes": job.nodes,
                "numProcPerNode": job.nproc,
                "resourcesPerNode": resources(job.cpus, job.memory, job.gpus),
                "command": ["torchrun"],
                "args": _arguments(job),
                "env": [{"name": name, "value": value} for name, value in _VARIABLES.items()],
            },
            "runtimePatches": [_patch(job)],
        },
    }


def _arguments(job: TrainingJob) -> list[str]:
    """Of torchrun; Kubernetes replaces $(NAME) in them, and $$ by $."""
    conf = ",".join(f"{name}={value}" for name, value in RendezvousTimes().to_torch().items())
    return [
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=$(PET_MASTER_ADDR):$(PET_MASTER_PORT)",
        f"--rdzv-id={job.name}",
        f"--rdzv-conf={conf}",
        f"--max-restarts={job.max_restarts}",
        *(word.replace("$", "$$") for word in job.command.for_torchrun()),
    ]


def _patch(job: TrainingJob) -> Part:
    """The volumes, merged into the pods of the runtime."""
    found, mounts = volumes(job)
    pod = {"volumes": found, "containers": [{"name": _PLACE, "volumeMounts": mounts}]}
    replicated = {"name": _PLACE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }
