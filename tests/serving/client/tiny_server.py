"""A server of the protocol in a thread, whose refusals and failures a test scripts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np


class TinyServer(ThreadingHTTPServer):
    """Doubles the input "x" of model "double"; `script` has what the next requests get instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[Any] = []  # (status, headers, body), "drop" or "hang"
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()
        self._thread.join(60)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: TinyServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((f"{self.command} {self.path}", headers, body))
        planned = self.server.script.pop(0) if self.server.script else None
        if planned in ("drop", "hang"):
            if planned == "hang":
                self.server.released.wait(60)
            self.close_connection = True
            return
        status, extra, data = planned or self._result(headers, body)
        self.send_response(status)
        for name, value in extra.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _result(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.path.endswith("/infer"):
            return _double(body, int(headers["inference-header-content-length"]))
        if self.path == "/v2/models/double":
            about = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}
            return 200, {}, json.dumps(about).encode()
        if self.path.startswith("/v2/models/none"):
            return 404, {}, b'{"error": "no model none"}'
        if self.path.endswith(("load", "ready")):
            return 200, {}, b""
        if self.path == "/v2/repository/index":
            return 200, {}, b'[{"name": "double"}]'
        return 200, {}, json.dumps({"path": self.path}).encode()


def _double(body: bytes, length: int) -> tuple[int, dict[str, str], bytes]:
    header = json.loads(body[:length])
    shape = header["inputs"][0]["shape"]
    data = (2 * np.frombuffer(body[length:], "<f4")).tobytes()
    about = {"name": "y", "datatype": "FP32", "shape": shape,
             "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    start = json.dumps({"model_name": "double", "outputs": [about]}).encode()
    return 200, {"Inference-Header-Content-Length": str(len(start))}, start + data
