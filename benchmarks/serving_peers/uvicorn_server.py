"""Bare uvicorn and onnxruntime: an ASGI app with raw bodies, httptools and uvloop.

python uvicorn_server.py CASE MODEL PORT [WORKERS]
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from peer_model import CORES, PeerModel

HEADERS = [(b"content-type", b"application/octet-stream")]


class App:
    """POST with a raw body; the answer is the raw output.

    The small model runs in the event loop, where it takes less time than a thread's switch; the
    larger one in as many threads as there are cores, each with a single-threaded run.
    """

    def __init__(self) -> None:
        case, path = os.environ["PEER_CASE"], os.environ["PEER_MODEL"]
        self._model = PeerModel(case, path, threads=1)
        self._threads = ThreadPoolExecutor(CORES) if case == "minilm" else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        item = self._model.read(body)
        if self._threads is None:
            data = self._model.run_one(item)
        else:
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(self._threads, self._model.run_one, item)
        length = (b"content-length", b"%d" % len(data))
        start = {"type": "http.response.start", "status": 200, "headers": [*HEADERS, length]}
        await send(start)
        await send({"type": "http.response.body", "body": data})


def make_app() -> App:
    return App()


if __name__ == "__main__":
    os.environ["PEER_CASE"], os.environ["PEER_MODEL"] = sys.argv[1:3]
    uvicorn.run(
        "uvicorn_server:make_app", factory=True, host="127.0.0.1", port=int(sys.argv[3]),
        workers=int(sys.argv[4]) if len(sys.argv) > 4 else 1, http="httptools", loop="uvloop",
        lifespan="off", access_log=False, log_level="warning", ws="none",
    )  # fmt: skip
