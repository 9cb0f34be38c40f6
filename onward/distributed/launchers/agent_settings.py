"""AgentSettings: what the agent of a machine runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """What the agent of a machine runs; as JSON, it is the argument of its process.

    Attributes:
        command: of each process, with its arguments
        nproc: processes on this machine
        nodes: the fewest and the most machines
        host: at which the machines meet; its `port` is 0 for a free one, only on one machine
        max_restarts: how often all processes start again after one failed
        interval: seconds between two looks at the processes
        rendezvous: settings of torch's rendezvous
        logs: the folder of the output of all processes but the first
        show_all: show the output of the others, too, each line with its rank
        parent: the process that the agent ends with
    """

    command: list[str]
    nproc: int
    nodes: tuple[int, int]
    host: str
    port: int
    run_id: str
    max_restarts: int
    interval: float
    rendezvous: dict[str, int]
    logs: str
    show_all: bool
    parent: int
