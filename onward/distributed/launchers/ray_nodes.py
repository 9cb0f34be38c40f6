"""Run the processes of a run on the machines of a Ray cluster, one launcher on each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from onward.distributed.launchers import start_worker
from onward.distributed.launchers.rendezvous import show_endpoint
from onward.errors import DistributedError, PackageMissing
from onward.message_text import first_line


def run_on_ray(
    command: Sequence[str],
    *,
    nodes: int,
    nproc: int,
    max_restarts: int = 0,
    cpus: int = 1,
    gpus: int = 0,
    timeout: float = 600.0,
) -> int:
    """Run `onward launch ... command` on machines of a Ray cluster; the exit code of the run.

    Ray reserves `cpus` and `gpus` on each of `nodes` different machines; torch.distributed does
    the rest. When one machine fails, those of the others are stopped.

    Args:
        command: what follows the options of `onward launch`
        timeout: seconds after which machines that are not free are an error
    """
    ray = _connect()
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    needs: dict[str, float] = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    group = placement_group([needs] * nodes, strategy="STRICT_SPREAD")
    try:
        if not group.wait(timeout):
            raise DistributedError(
                f"the Ray cluster has no {nodes} free machines with {cpus} CPUs and {gpus} GPUs "
                f"each\nadd machines, or ask for less; `ray status` shows what is free"
            )

        def on_machine(function: Any, index: int) -> Any:
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            remote = ray.remote(function)
            return remote.options(
                num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy=place
            )

        meet = ray.get(on_machine(find_free_endpoint, 0).remote())
        words = ["--nodes", str(nodes), "--nproc", str(nproc), "--rdzv", meet]
        words += ["--max-restarts", str(max_restarts), *command]
        tasks = [on_machine(run_launcher, index).remote(words) for index in range(nodes)]
        return _wait(ray, tasks)
    finally:
        remove_placement_group(group)


def _connect() -> Any:
    try:
        import ray
    except ImportError as error:
        raise PackageMissing(
            "Ray is not installed\ninstall it with: pip install 'ray[default]'"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=True)
        except ConnectionError as error:
            raise DistributedError(
                "there is no Ray cluster to run on\n"
                "start one with `ray start --head`, or submit the command with `ray job submit`"
            ) from error
    return ray


def _wait(ray: Any, tasks: list[Any]) -> int:
    """The exit code of the first machine that failed; the others are stopped."""
    left = tasks
    while left:
        [ended], left = ray.wait(left, num_returns=1)
        try:
            code = int(ray.get(ended))
        except ray.exceptions.RayError as error:
            code = 1
            first = first_line(error)
            print(f"error: a machine of the run is lost: {first}", file=sys.stderr)
        if code:
            for other in left:
                ray.cancel(other, force=True)
            return code
    return 0


# -- on the machines ------------------------------------------------------------------------------


def find_free_endpoint() -> str:
    """An address of this machine that others reach, and a free port."""
    import ray

    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as found:
        found.bind((address, 0))
        return show_endpoint(address, int(found.getsockname()[1]))


def run_launcher(words: Sequence[str]) -> int:
    """Run `onward launch` here; it ends when this process of Ray does."""
    command = [sys.executable, "-m", "onward", "launch", *words]
    if sys.platform == "linux":
        start = [sys.executable, "-I", "-S", start_worker.__file__, str(os.getpid())]
        command = [*start, *command]
    code = subprocess.run(command, check=False).returncode
    return 128 - code if code < 0 else code
