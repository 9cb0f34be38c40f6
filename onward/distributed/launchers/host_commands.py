"""The torchrun command of each machine of a run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from onward.distributed.launchers.launched_command import LaunchedCommand
from onward.distributed.launchers.rendezvous import RendezvousTimes, read_endpoint, show_endpoint
from onward.errors import OptionError

_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # see local_processes.py


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines of a run, and how its processes are spread over them.

    Attributes:
        nproc: processes on each machine
        hosts: their names, as ssh takes them; none: only this machine
        nodes: the fewest and the most machines; None: all hosts
        rendezvous: HOST:PORT at which they meet; None: the first host
        max_restarts: how often all processes start again after one failed
    """

    nproc: int = 1
    hosts: Sequence[str] = ()
    nodes: tuple[int, int] | None = None
    rendezvous: str | None = None
    max_restarts: int = 0
    times: RendezvousTimes = field(default_factory=RendezvousTimes)

    @property
    def fewest(self) -> int:
        """Machines without which the run ends."""
        return self.nodes[0] if self.nodes else max(1, len(self.hosts))


def read_nodes(text: str) -> tuple[int, int]:
    """The fewest and the most machines of N or MIN:MAX.

    >>> read_nodes("2"), read_nodes("1:4")
    ((2, 2), (1, 4))
    """
    fewest, colon, most = text.partition(":")
    numbers = [fewest, most if colon else fewest]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise OptionError(f"--nodes takes N or MIN:MAX, not {text!r}")
    low, high = map(int, numbers)
    if not 1 <= low <= high:
        raise OptionError(f"--nodes takes N or MIN:MAX with 1 <= MIN <= MAX, not {text!r}")
    return low, high


def host_commands(
    command: LaunchedCommand, machines: Machines, torchrun: Sequence[str] = ("torchrun",)
) -> dict[str, list[str]]:
    """The torchrun command of each host, with its variables; of `localhost`, if there are none."""
    options = [f"--nproc-per-node={machines.nproc}", f"--max-restarts={machines.max_restarts}"]
    nodes = machines.nodes or (max(1, len(machines.hosts)),) * 2
    if not machines.hosts and nodes == (1, 1):
        return {"localhost": [*torchrun, "--standalone", *options, *command.for_torchrun()]}
    _check_hosts(machines)
    host, port = read_endpoint(machines.rendezvous or _name(machines.hosts[0]))
    options += [
        f"--nnodes={nodes[0]}:{nodes[1]}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={show_endpoint(host, port)}",
        f"--rdzv-id={secrets.token_hex(4) if machines.hosts else machines.rendezvous}",
        "--monitor-interval=0.1",
    ]
    start = ["env", *(f"{name}={value}" for name, value in _VARIABLES.items()), *torchrun]
    given = [f"{name}={value}" for name, value in machines.times.to_torch().items()]
    if not machines.hosts:
        conf = [f"--rdzv-conf={','.join(given)}"]
        return {"localhost": [*start, *options, *conf, *command.for_torchrun()]}
    return {
        each: [
            *(*start, *options),
            f"--local-addr={_name(each)}",
            # which machine hosts the rendezvous is given, not guessed from its names
            f"--rdzv-conf={','.join([*given, f'is_host={_name(each) == host}'.lower()])}",
            *command.for_torchrun(),
        ]
        for each in machines.hosts
    }


def _check_hosts(machines: Machines) -> None:
    hosts = list(machines.hosts)
    if len(set(hosts)) < len(hosts):
        raise OptionError(f"a host is given twice: {', '.join(hosts)}\ngive each host once")
    if hosts and machines.nodes and not machines.nodes[0] <= len(hosts) <= machines.nodes[1]:
        low, high = machines.nodes
        raise OptionError(
            f"--nodes {low}:{high} does not fit {len(hosts)} hosts\n"
            "leave out --nodes, or give as many hosts"
        )
    if machines.rendezvous is None and not hosts:
        raise OptionError(
            "--rdzv is missing: several machines need an address where they meet\n"
            "give the same --rdzv HOST:PORT on each; HOST is one of them"
        )
    if machines.rendezvous and hosts:
        host, _ = read_endpoint(machines.rendezvous)
        if host not in map(_name, hosts):
            raise OptionError(
                f"--rdzv {host} is not one of the hosts {', '.join(hosts)}\n"
                "the machines meet at one of them, by the same name"
            )


def _name(host: str) -> str:
    """The host without the user that ssh logs in as.

    >>> _name("me@node1")
    'node1'
    """
    return host.rpartition("@")[2]
