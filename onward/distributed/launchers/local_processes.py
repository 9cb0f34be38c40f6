"""Start the processes of a run on this machine, show their output, and pass signals on."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onward.distributed.launchers.agent_settings import AgentSettings
from onward.distributed.launchers.rendezvous import RendezvousTimes, read_endpoint
from onward.errors import OptionError, PackageMissing

_INTERVAL = 0.1  # seconds between two looks at the processes
_TIMES = RendezvousTimes()
# Ctrl-C while torch is imported ends the agent without a traceback
_AGENT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from onward.distributed.launchers.agent import main; sys.exit(main())"
)
# A surviving agent of torch 2.13 publishes no address to a machine that joins again, unless this
# is set: the run would wait forever.
_NO_SHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP")

Process = subprocess.Popen[Any]


def run_local(
    command: Sequence[str],
    nproc: int,
    *,
    variables: Mapping[str, str],
    max_restarts: int = 0,
    nodes: tuple[int, int] = (1, 1),
    rendezvous: str | None = None,
    run_id: str | None = None,
    logs: Path | None = None,
    show_all: bool = False,
    times: RendezvousTimes = _TIMES,
) -> int:
    """Run a command in several processes of this machine, and return the exit code of the run.

    It is 0, or that of the process that failed first, or 130 after Ctrl-C. The output of process 0
    is shown; the others write files, whose end is shown if they fail. When a process fails, all
    are stopped, and started again `max_restarts` times. Ctrl-C and SIGTERM are passed on, so
    that processes may save; a second one ends them at once. When this process or the agent dies,
    so do the others (on Linux).

    Args:
        command: with its arguments
        nproc: processes on this machine
        variables: the environment of the processes
        nodes: the fewest and the most machines of the run
        rendezvous: HOST:PORT at which several machines meet, one of them
        run_id: a name that all machines of the run have in common; None: that of `rendezvous`
        logs: where the output of all but process 0 is kept; None: a folder that is removed
        show_all: show the output of the others, too, each line with its rank
        times: how long machines wait for each other
    """
    _check(command, nproc, max_restarts, nodes, rendezvous)
    if find_spec("torch") is None:
        raise PackageMissing(
            "torch is not installed, whose agent starts processes\n"
            "install it with: pip install onward[torch]"
        )
    host, port = ("localhost", 0) if rendezvous is None else read_endpoint(rendezvous)
    with ExitStack() as stack:
        if logs is None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onward-")))
        logs.mkdir(parents=True, exist_ok=True)
        settings = AgentSettings(
            command=list(command),
            nproc=nproc,
            nodes=nodes,
            host=host,
            port=port,
            run_id=run_id or rendezvous or secrets.token_hex(8),
            max_restarts=max_restarts,
            interval=_INTERVAL,
            rendezvous=times.to_torch(),
            logs=str(logs.absolute()),
            show_all=show_all,
            parent=os.getpid(),
        )
        return _run_agent(settings, worker_variables(variables, nproc))


def worker_variables(variables: Mapping[str, str], nproc: int) -> dict[str, str]:
    """The environment of the processes: threads share the cores of this machine.

    >>> worker_variables({"OMP_NUM_THREADS": "3"}, 2)["OMP_NUM_THREADS"]
    '3'
    """
    added = dict(_NO_SHARED_STORE)
    if nproc > 1:
        added["OMP_NUM_THREADS"] = str(max(1, _cores() // nproc))
    return {**added, **variables}


def _check(
    command: Sequence[str],
    nproc: int,
    max_restarts: int,
    nodes: tuple[int, int],
    rendezvous: str | None,
) -> None:
    if not command:
        raise OptionError("there is no command to run\ngive a script, or: train model.onnx ...")
    if nproc < 1:
        raise OptionError(f"--nproc must be at least 1, not {nproc}")
    if max_restarts < 0:
        raise OptionError(f"--max-restarts must be at least 0, not {max_restarts}")
    if not 1 <= nodes[0] <= nodes[1]:
        raise OptionError(f"--nodes takes N or MIN:MAX, not {nodes[0]}:{nodes[1]}")
    if nodes != (1, 1) and rendezvous is None:
        raise OptionError(
            "--rdzv is missing: several machines need an address where they meet\n"
            "give the same --rdzv HOST:PORT on each; HOST is one of them"
        )


def _cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_agent(settings: AgentSettings, variables: Mapping[str, str]) -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", _AGENT, json.dumps(asdict(settings))],
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches it once, from here
    )
    with forward_signals([process], _send) as received:
        code = process.wait()
    if received:
        return 128 + received[0]
    if code < 0:
        print(f"error: the agent of the run was ended by signal {-code}", file=sys.stderr)
    return 128 - code if code < 0 else code


def _send(process: Process, number: int) -> None:
    process.send_signal(number)


@contextmanager
def forward_signals(
    processes: Sequence[Process], send: Callable[[Process, int], None]
) -> Iterator[list[int]]:
    """Within it, the first signal is passed on to processes, and a second one kills them.

    Yields the signals that came; at its end, no process is left. Outside of the main thread,
    Python receives no signals.
    """
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        for process in processes:
            if process.returncode is not None:
                continue
            if len(received) == 1:
                send(process, number)
            else:
                process.kill()

    in_main = threading.current_thread() is threading.main_thread()
    names = [name for name in _FORWARDED if in_main and hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    kept = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
