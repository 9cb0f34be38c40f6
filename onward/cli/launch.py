"""onward launch: start the processes of a training run, on this machine or on several."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from onward.cli.help_text import unwrap
from onward.distributed.launchers.host_commands import Machines, host_commands, read_nodes
from onward.distributed.launchers.launched_command import LaunchedCommand, read_command
from onward.distributed.launchers.local_processes import run_local
from onward.distributed.launchers.ray_nodes import run_on_ray
from onward.distributed.launchers.remote_hosts import run_on_hosts, ssh_commands
from onward.distributed.launchers.slurm import expand_hosts
from onward.errors import OptionError

app = typer.Typer(name="launch", add_completion=False)
_TRACEBACK = "--traceback"


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="train|SCRIPT.py|MODULE [ARGUMENTS]...",
            help="What each process runs, with its own options: they are passed on as they are.",
            show_default=False,
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(metavar="N", help="Processes on each machine.")] = 1,
    module: Annotated[bool, typer.Option("-m", help="The command is a module.")] = False,
    max_restarts: Annotated[
        int, typer.Option(metavar="N", help="Start all again so often after one failed.")
    ] = 0,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N|MIN:MAX", help="Machines of the run, this being one of them."),
    ] = None,
    rdzv: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where machines meet: at one of them."),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="HOST,HOST", help="Print the torchrun command of each host; also node[01-04]."
        ),
    ] = None,
    ssh: Annotated[
        bool, typer.Option("--ssh", help="Run the commands of the hosts over ssh.")
    ] = False,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="With --ssh, the Python of the hosts.")
    ] = sys.executable,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on --nodes machines of a Ray cluster.")
    ] = False,
    cpus: Annotated[int, typer.Option(metavar="N", help="With --ray, cores of each machine.")] = 1,
    gpus: Annotated[int, typer.Option(metavar="N", help="With --ray, GPUs of each machine.")] = 0,
    logs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the output of all but process 0.")
    ] = None,
    all_output: Annotated[
        bool, typer.Option("--all-output", help="Show the output of every process.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the torchrun command, and stop.")
    ] = False,
) -> None:
    """Start the processes of a training run, on this machine or on several.

    The output of process 0 is shown, and that of a process which fails. Ctrl-C lets all of them
    save and stop. The exit code is that of the process that failed first. Options of launch stand
    before the command, all others after it.

    \b
    onward launch --nproc 2 train model.onnx --data data.csv
    onward launch --nproc 4 --max-restarts 3 script.py --epochs 10
    onward launch --nproc 8 --nodes 2 --rdzv node1:29400 script.py     (on both machines)
    onward launch --nproc 8 --hosts node1,node2 --ssh script.py
    """
    typed = _as_typed(command or [], sys.argv)
    what = read_command(typed, module=module)
    machines = Machines(
        nproc=nproc,
        hosts=expand_hosts(hosts) if hosts is not None else (),
        nodes=None if nodes is None else read_nodes(nodes),
        rendezvous=rdzv,
        max_restarts=max_restarts,
    )
    _check(machines, ssh)
    if ray:
        raise typer.Exit(_on_ray(what, machines, cpus, gpus))
    if machines.hosts or dry_run:
        _on_hosts(what, machines, ssh=ssh, python=python, dry_run=dry_run)
        return
    code = run_local(
        what.here(),
        nproc,
        variables=os.environ,
        max_restarts=max_restarts,
        nodes=machines.nodes or (1, 1),
        rendezvous=rdzv,
        logs=logs,
        show_all=all_output,
    )
    raise typer.Exit(code)


app.command(
    "launch",
    help=unwrap(launch.__doc__ or ""),
    context_settings={"allow_interspersed_args": False},  # what follows the command is its own
)(launch)


def _check(machines: Machines, ssh: bool) -> None:
    if machines.nproc < 1 or machines.max_restarts < 0:
        raise OptionError("--nproc must be at least 1, and --max-restarts at least 0")
    if ssh and not machines.hosts:
        raise OptionError("--ssh needs hosts\ngive them: --hosts node1,node2")


def _on_hosts(
    what: LaunchedCommand, machines: Machines, *, ssh: bool, python: str, dry_run: bool
) -> None:
    """Print the command of each host, or run them."""
    torchrun = (python, "-m", "torch.distributed.run") if ssh else ("torchrun",)
    commands = host_commands(what, machines, torchrun)
    if ssh and not dry_run:
        raise typer.Exit(run_on_hosts(commands, folder=os.getcwd(), fewest=machines.fewest))
    shown = ssh_commands(commands, os.getcwd()) if ssh else commands
    for host, command in shown.items():
        title = f"# on {host}\n" if machines.hosts else ""
        typer.echo(f"{title}{shlex.join(command)}")


def _on_ray(what: LaunchedCommand, machines: Machines, cpus: int, gpus: int) -> int:
    low, high = machines.nodes or (1, 1)
    if low != high or machines.hosts or machines.rendezvous:
        raise OptionError("--ray takes --nodes N, and neither --hosts nor --rdzv")
    return run_on_ray(
        what.as_given(),
        nodes=high,
        nproc=machines.nproc,
        max_restarts=machines.max_restarts,
        cpus=cpus,
        gpus=gpus,
    )


def _as_typed(command: Sequence[str], typed: Sequence[str]) -> list[str]:
    """The command with any --traceback in it, which main takes for its own."""
    left, found = list(command), list[str]()
    for word in reversed(typed):
        if not left:
            break
        found.insert(0, word)
        if word != _TRACEBACK and word != left.pop():
            return list(command)  # not from a command line
    return found
