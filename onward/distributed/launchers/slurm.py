"""The variables of Slurm: hosts, tasks of a node, and a port for the processes to meet at."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onward.errors import OptionError

_JOB = ("SLURM_JOB_ID", "SLURM_JOBID")
_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
_HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_FIRST_PORT, _PORTS = 20_000, 12_000  # below the ports that Linux gives to outgoing connections
_MOST_HOSTS = 100_000


def is_batch_script(variables: Mapping[str, str]) -> bool:
    """Whether this is the script of sbatch: it has a SLURM_PROCID, but is not a task of srun.

    >>> is_batch_script({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    True
    """
    in_job = any(name in variables for name in _JOB)
    in_step = any(name in variables for name in (*_STEP, "SLURM_STEP_NUM_TASKS"))
    return in_job and not in_step


def tasks_of_node(name: str, variables: Mapping[str, str]) -> int:
    """The tasks on this task's node, from a variable such as SLURM_TASKS_PER_NODE=4(x2),3.

    >>> tasks_of_node("SLURM_TASKS_PER_NODE", {"SLURM_TASKS_PER_NODE": "4(x2),3",
    ...                                        "SLURM_NODEID": "2"})
    3
    """
    counts: list[int] = []
    for part in variables[name].split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip(), re.ASCII)
        if found is None or int(found[2] or 1) > _MOST_HOSTS:
            raise OptionError(
                f"srun set {name}={variables[name]!r}, which is not like 4(x2),3\n"
                "unset it, or start the run with `onward launch`"
            )
        counts += [int(found[1])] * int(found[2] or 1)
    node = variables.get("SLURM_NODEID", "0")
    place = int(node) if node.isdigit() else 0
    return counts[place] if place < len(counts) else counts[0]


def slurm_meeting_point(variables: Mapping[str, str]) -> tuple[str, int] | None:
    """The first host of a step, and a port that belongs to this step; None: not known."""
    hosts = next((variables[name] for name in _HOSTS if variables.get(name)), None)
    if hosts is None:
        return None
    job = next((variables[name] for name in _JOB if variables.get(name)), "0")
    step = next((variables[name] for name in _STEP if variables.get(name)), "0")
    numbers = [int(text) if text.isdigit() else 0 for text in (job, step)]
    return expand_hosts(hosts)[0], _FIRST_PORT + (numbers[0] + 101 * numbers[1]) % _PORTS


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list as Slurm writes it.

    >>> expand_hosts("node[01-03,7],gpu5")
    ['node01', 'node02', 'node03', 'node7', 'gpu5']
    """
    parts = [_expand(part) for part in _split(text)]
    hosts = [host for part in parts for host in part]
    known = all(re.fullmatch(r"[\w.:@\-]+", host) for host in hosts)
    if not hosts or not known or not all(parts):
        raise OptionError(
            f"{text!r} is not a list of hosts\nwrite it like node1,node2 or node[01-03,7]"
        )
    return hosts


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _expand(part: str) -> list[str]:
    """The hosts of one part: each of its first bracket, and of what follows it."""
    before, opened, rest = part.partition("[")
    if not opened:
        return [part]
    inside, closed, after = rest.partition("]")
    numbers = [number for each in inside.split(",") for number in _numbers(each)] if closed else []
    return [before + number + tail for number in numbers for tail in _expand(after)]


def _numbers(text: str) -> list[str]:
    """The numbers of 08-11 or 7, with the zeros before them."""
    first, dash, last = text.strip().partition("-")
    last = last if dash else first
    if not (first.isdigit() and last.isdigit()) or int(last) - int(first) >= _MOST_HOSTS:
        return []
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
