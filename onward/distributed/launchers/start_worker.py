"""Run a command in this process, and end it when the process that started it ends.

The launcher runs this file by its path: python start_worker.py PARENT COMMAND [ARGUMENT ...].
It imports nothing but the standard library, so that a process starts quickly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_COMMAND_MISSING = 127  # as a shell


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Let Linux send a signal to this process when its parent ends, or at once if it has ended.

    An agent of torchrun that is killed leaves its workers running, and they would go on writing
    checkpoints while others take over the run. It survives exec; other systems have no such call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), by)


def main() -> int:
    """Replace this process by the command."""
    parent, *command = sys.argv[1:]
    end_with_parent(int(parent))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return _COMMAND_MISSING


if __name__ == "__main__":
    sys.exit(main())
