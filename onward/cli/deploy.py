"""onward deploy: write the job of a training run for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli.help_text import unwrap
from onward.distributed.deploy.kubeflow_job import train_job
from onward.distributed.deploy.ray_job import ray_job
from onward.distributed.deploy.slurm_script import slurm_script
from onward.distributed.deploy.training_job import TrainingJob
from onward.distributed.deploy.yaml_text import to_yaml
from onward.distributed.launchers.launched_command import read_command
from onward.errors import OptionError
from onward.graph.paths import check_writable

_TARGETS = {
    "kubeflow": lambda job: to_yaml(train_job(job)),
    "ray": lambda job: to_yaml(ray_job(job)),
    "slurm": slurm_script,
}
_SUBMIT = {"kubeflow": "kubectl apply -f", "ray": "kubectl apply -f", "slurm": "sbatch"}

app = typer.Typer(name="deploy", add_completion=False, no_args_is_help=True)


def deploy() -> None:
    """Write the job of a training run for Kubernetes, Ray or Slurm.

    \b
    onward deploy train --help
    """


app.callback(help=unwrap(deploy.__doc__ or ""))(deploy)


def train(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="train|SCRIPT.py|MODULE [ARGUMENTS]...",
            help="What each process runs there, with its own options.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="|".join(_TARGETS),
            help="A TrainJob of Kubeflow Trainer, a RayJob of KubeRay, or a script for sbatch.",
            autocompletion=lambda incomplete: [t for t in _TARGETS if t.startswith(incomplete)],
        ),
    ] = "kubeflow",
    name: Annotated[str, typer.Option(help="The name of the job.")] = "onward-train",
    image: Annotated[
        str | None, typer.Option(help="The image of its containers, with Onward in it.")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Machines.")] = 1,
    nproc: Annotated[int, typer.Option(metavar="N", help="Processes on each machine.")] = 1,
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs of each machine.")] = 0,
    cpus: Annotated[int, typer.Option(metavar="N", help="Cores of each machine.")] = 1,
    memory: Annotated[str, typer.Option(help="Memory of each machine.")] = "4Gi",
    volume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PATH]",
            help="Where runs are kept: a claim of Kubernetes, or a folder with Slurm; at /runs.",
        ),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(metavar="N", help="Start all again so often after one failed.")
    ] = 3,
    namespace: Annotated[str | None, typer.Option(help="The namespace of Kubernetes.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The command is a module.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The new file; else it is printed.")
    ] = None,
) -> None:
    """Write the job of a training run for Kubernetes, Ray or Slurm.

    The command runs in every process, as onward launch starts them. Options of deploy stand before
    it, all others after it.

    \b
    onward deploy train --to kubeflow --name digits --image team/train:1 --nodes 2 --nproc 4 \\
        --gpus 4 --memory 64Gi --volume runs train model.onnx --data data.csv --runs /runs
    onward deploy train --to slurm --nodes 4 --nproc 8 -o train.sbatch script.py
    """
    if to not in _TARGETS:
        raise OptionError(f"--to takes {', '.join(_TARGETS)}, not {to!r}")
    job = TrainingJob(
        name=name,
        command=read_command(command or [], module=module, elsewhere=True),
        image=image,
        nodes=nodes,
        nproc=nproc,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        volume=volume,
        max_restarts=max_restarts,
        namespace=namespace,
    )
    text = _TARGETS[to](job)
    if output is None:
        typer.echo(text, nl=False)
        return
    check_writable(output)
    output.write_text(text, encoding="utf-8")
    typer.echo(f"written: {output}; next: {_SUBMIT[to]} {output}")


app.command(
    "train",
    help=unwrap(train.__doc__ or ""),
    context_settings={"allow_interspersed_args": False},
)(train)
