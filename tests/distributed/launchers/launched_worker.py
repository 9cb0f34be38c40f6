"""A process that a launcher starts in tests: it tells who it is, and does what it is told.

    python launched_worker.py PORT [ARGUMENT ...]

It connects to the port and sends one line of JSON. Then it obeys: `exit N`, or `fail TEXT` for an
exception, or `lose` for what a process says whose peer is gone. SIGINT and SIGTERM are reported.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

SHOWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "GIVEN",
         "TORCHELASTIC_RESTART_COUNT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")  # fmt: skip


def main() -> None:
    port, *arguments = sys.argv[1:]
    shown = {name: os.environ.get(name) for name in SHOWN}
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        who: dict[str, Any] = {**shown, "pid": os.getpid(), "arguments": arguments}

        def report(number: int, frame: object) -> None:
            connection.sendall(f"{signal.Signals(number).name}\n".encode())
            os._exit(130)

        signal.signal(signal.SIGINT, report)
        signal.signal(signal.SIGTERM, report)
        print(f"output of {shown['RANK']}", flush=True)
        connection.sendall(json.dumps(who).encode() + b"\n")
        order, _, text = connection.makefile().readline().strip().partition(" ")
    if order == "fail":
        raise ValueError(text)
    if order == "lose":
        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:5")
    sys.exit(int(text or 0))


if __name__ == "__main__":
    main()
