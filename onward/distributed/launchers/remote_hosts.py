"""Run a command on several hosts over ssh, all of which end together."""

from __future__ import annotations

import os
import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from onward.distributed.launchers import start_worker
from onward.distributed.launchers.local_processes import forward_signals

# with a terminal, a lost connection ends the remote command, and Ctrl-C reaches it
SSH = ("ssh", "-tt", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5")
_CTRL_C = b"\x03"
_LAST_LINES = 5.0  # seconds for the last output of a connection that was closed
_GRACE = 60.0  # seconds in which processes may save and end

Connection = subprocess.Popen[bytes]


def ssh_commands(
    commands: Mapping[str, Sequence[str]], folder: str, shell: Sequence[str] = SSH
) -> dict[str, list[str]]:
    """The ssh command of each host, which runs its command in a folder there."""
    enter = f"cd {shlex.quote(folder)} && exec"
    return {
        host: [*shell, host, f"{enter} {shlex.join(command)}"] for host, command in commands.items()
    }


def run_on_hosts(
    commands: Mapping[str, Sequence[str]],
    *,
    folder: str,
    fewest: int,
    shell: Sequence[str] = SSH,
    show: Callable[[str], None] = print,
    grace: float = _GRACE,
) -> int:
    """Run the command of each host, and show its output; the exit code of the first that failed.

    When fewer than `fewest` hosts are left, the others are interrupted as by Ctrl-C, again after
    half of `grace` seconds, and disconnected after all of them. When this process is killed, the
    connections close, which ends the commands.
    """
    ended: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    processes = {
        host: _connect(command) for host, command in ssh_commands(commands, folder, shell).items()
    }
    relays = [
        threading.Thread(target=_relay, args=(host, process, show, ended), daemon=True)
        for host, process in processes.items()
    ]
    for relay in relays:
        relay.start()
    running, failed, code, interrupted = set(processes), 0, 0, 0
    with forward_signals(list(processes.values()), _interrupt) as received:
        while running:
            stopping = bool(received) or len(processes) - failed < fewest
            try:
                host, status = ended.get(timeout=grace / 2 if stopping else None)
            except queue.Empty:
                interrupted += 1
                if interrupted == 2:
                    break  # leaving the context kills them
                for other in running:  # the first Ctrl-C may have come before the command ran
                    _interrupt(processes[other])
                continue
            running.discard(host)
            if status == 0 or received:
                continue
            failed, code = failed + 1, code or status
            show(f"error: {host} ended with exit code {status}")
            if not stopping and len(processes) - failed < fewest:
                for other in running:
                    _interrupt(processes[other])
    for relay, process in zip(relays, processes.values()):
        relay.join(_LAST_LINES)
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
    return 128 + received[0] if received else code


def _connect(command: Sequence[str]) -> Connection:
    if sys.platform == "linux":  # a killed launcher closes the connection
        start = [sys.executable, "-I", "-S", start_worker.__file__, str(os.getpid())]
        command = [*start, *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _relay(
    host: str,
    process: Connection,
    show: Callable[[str], None],
    ended: queue.SimpleQueue[tuple[str, int]],
) -> None:
    """Show the output of a host line by line, then queue its exit code."""
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            show(f"[{host}] {line.decode(errors='replace').rstrip()}")
    code = process.wait()
    ended.put((host, 128 - code if code < 0 else code))


def _interrupt(process: Connection, number: int = 0) -> None:
    """Type Ctrl-C at the remote terminal: the signal reaches the command, which may save."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(_CTRL_C)
        process.stdin.flush()
