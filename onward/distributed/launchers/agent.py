"""The agent of a machine: starts its processes, and starts them again when one fails.

It is torch's elastic agent, in a process of its own that `run_local` starts.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from onward.distributed.launchers import start_worker
from onward.distributed.launchers.agent_settings import AgentSettings
from onward.distributed.launchers.failures import FENCED, Failure, root_cause
from onward.distributed.launchers.rendezvous import (
    hosts_store,
    limit_silence,
    own_address,
    show_endpoint,
)
from onward.errors import OptionError
from onward.message_text import first_line

_SHOWN_LINES = 15  # of the error output of a process that failed
_FAILED = 1


class _ReportingAgent(LocalElasticAgent):
    """torch's agent, which reports each failure."""

    failure: Failure | None = None
    logs: Path

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed() and result.failures:
            size = worker_group.workers[0].world_size
            found = [
                Failure(rank, size, each.exitcode, _last_lines(self.logs, each.local_rank))
                for rank, each in result.failures.items()
            ]
            self.failure = root_cause(found)
            if any(each.exit_code == FENCED for each in found):
                self._remaining_restarts = 0  # they would take the run back
            most = worker_group.spec.max_restarts
            if self._remaining_restarts > 0:
                restart = most - self._remaining_restarts + 1
                _say("warning", f"{self.failure}; all start again ({restart} of {most} restarts)")
        return result


def main() -> int:
    """Run the agent that the argument describes; the exit code of its run."""
    given = json.loads(sys.argv[1])
    settings = AgentSettings(**{**given, "nodes": tuple(given["nodes"])})
    start_worker.end_with_parent(settings.parent, signal.SIGTERM)
    logs = logging.getLogger("torch.distributed.elastic")
    logs.propagate = False
    logs.addHandler(logging.NullHandler())  # what matters of it is printed here, in one line each
    try:
        return run_agent(settings)
    except SignalException as error:
        return 128 + int(error.sigval)
    except OptionError as error:
        _say("error", "; ".join(str(error).splitlines()))
        return 2


def run_agent(settings: AgentSettings) -> int:
    """Run the processes of this machine to their end; join again when the connection is lost."""
    is_one_node = settings.nodes == (1, 1)
    address = "127.0.0.1" if is_one_node else own_address(settings.host, settings.port)
    where = f"the machine at which all meet, {show_endpoint(settings.host, settings.port)}"
    deadline: float | None = None
    while True:
        tried = time.monotonic()
        try:
            return _run_once(settings, address)
        except RendezvousClosedError:
            _say("error", "the run has ended on the other machines")
            return _FAILED
        except RendezvousTimeoutError:
            waited = settings.rendezvous["join_timeout"]
            _say("error", f"{settings.nodes[0]} machines did not come together in {waited} s")
            return _FAILED
        except (RendezvousError, dist.DistError, TimeoutError, ConnectionError) as error:
            now = time.monotonic()
            if now - tried > 2 * settings.rendezvous["read_timeout"]:
                deadline = None  # it had joined: the connection is lost another time
            if settings.max_restarts == 0 or (deadline is not None and now > deadline):
                first = first_line(error)
                _say("error", f"the connection to {where}, is lost: {first}")
                return _FAILED
            if deadline is None:
                _say("warning", f"the connection to {where}, is lost; trying to join again")
                deadline = now + settings.rendezvous["join_timeout"]
        gc.collect()  # with the old handler, its signs of life end
        time.sleep(settings.interval)


def _run_once(settings: AgentSettings, address: str) -> int:
    spec = _make_spec(settings, address)
    ranks = range(settings.nproc)
    others = {rank: Std.NONE if rank == 0 else Std.ALL for rank in ranks}
    agent = _ReportingAgent(
        spec,
        logs_specs=DefaultLogsSpecs(
            settings.logs, redirects=others, tee=others if settings.show_all else Std.NONE
        ),
        log_line_prefix_template="[${rank}] ",
    )
    agent.logs = Path(settings.logs)
    result = agent.run()
    spec.rdzv_handler.shutdown()  # not after an error: it would end the run on all machines
    if result is None or not result.is_failed():
        return 0
    failure = agent.failure
    if failure is None:
        _say("error", f"the processes ended as {result.state.name}")
        return _FAILED
    for line in () if settings.show_all else failure.last_lines:
        print(f"[{failure.rank}] {line}", file=sys.stderr)
    _say("error", str(failure))
    return failure.status


def _make_spec(settings: AgentSettings, address: str) -> WorkerSpec:
    is_host = settings.nodes == (1, 1) or hosts_store(settings.host, settings.port)
    try:
        handler = _join_rendezvous(settings, address, is_host)
    except RendezvousConnectionError:
        if not is_host:
            raise
        handler = _join_rendezvous(settings, address, False)  # another agent was faster here
    limit_silence(settings.port, settings.rendezvous["read_timeout"])
    entry, *arguments = _with_parent(settings.command)
    return WorkerSpec(
        role="worker",
        local_world_size=settings.nproc,
        rdzv_handler=handler,
        entrypoint=entry,
        args=tuple(each.replace("$", "$$") for each in arguments),  # torch replaces $local_rank
        max_restarts=settings.max_restarts,
        monitor_interval=settings.interval,
        local_addr=address,
    )


def _join_rendezvous(settings: AgentSettings, address: str, is_host: bool) -> Any:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=show_endpoint(settings.host, settings.port),
        run_id=settings.run_id,
        min_nodes=settings.nodes[0],
        max_nodes=settings.nodes[1],
        local_addr=address,
        is_host=is_host,
        **settings.rendezvous,
    )
    return get_rendezvous_handler(parameters)


def _with_parent(command: Sequence[str]) -> list[str]:
    """The command, in a process that ends when this agent does."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", start_worker.__file__, str(os.getpid()), *command]


def _last_lines(logs: Path, local_rank: int) -> tuple[str, ...]:
    """The end of the error output of a process, at its newest start; none of process 0."""
    files = sorted(
        logs.glob(f"*/attempt_*/{local_rank}/stderr.log"), key=lambda file: file.stat().st_mtime
    )
    if not files:
        return ()
    with files[-1].open("rb") as file:
        file.seek(max(0, files[-1].stat().st_size - (16 << 10)))
        text = file.read().decode(errors="replace")
    return tuple(text.splitlines()[-_SHOWN_LINES:])


def _say(kind: str, text: str) -> None:
    print(f"{kind}: {text}", file=sys.stderr, flush=True)
