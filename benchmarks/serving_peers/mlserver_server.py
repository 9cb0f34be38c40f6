"""MLServer with a custom runtime: python mlserver_server.py CASE MODEL PORT BATCH

Its REST interface takes JSON only. It batches requests of one shape, so BATCH is for the mlp.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    case, path, port, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    folder = Path(tempfile.mkdtemp())
    settings = {
        "host": "127.0.0.1", "http_port": port, "grpc_port": free_port(),
        "metrics_port": free_port(), "debug": False, "parallel_workers": 0,
        "gzip_enabled": False, "use_structured_logging": False,
    }  # fmt: skip
    model = {"name": "model", "implementation": "mlserver_runtime.OnnxRuntime"}
    if batch > 1:
        model |= {"max_batch_size": batch, "max_batch_time": 0.002}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    here = str(Path(__file__).parent)
    os.environ |= {"PEER_CASE": case, "PEER_MODEL": path, "PYTHONPATH": here}
    os.chdir(folder)
    command = Path(sys.executable).parent / "mlserver"
    os.execv(command, ["mlserver", "start", str(folder)])
