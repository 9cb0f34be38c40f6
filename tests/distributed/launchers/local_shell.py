"""Stands in for ssh -tt in tests: HOST COMMAND, run here, at a terminal of its own."""

from __future__ import annotations

import os
import pty
import sys


def main() -> int:
    host, command = sys.argv[1:]
    if host == "unreachable":
        print("ssh: connect to host unreachable: No route to host")
        return 255
    process, terminal = pty.fork()
    if process == 0:
        os.environ["HOST"] = host
        os.execvp("bash", ["bash", "-c", command])
    reader = os.fork()
    if reader == 0:  # what is typed
        while data := os.read(0, 1024):
            os.write(terminal, data)
        os._exit(0)
    try:
        while data := os.read(terminal, 1024):
            os.write(1, data)
    except OSError:  # the command has ended
        pass
    os.kill(reader, 9)
    os.waitpid(reader, 0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
