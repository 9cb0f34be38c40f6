"""Bare grpcio and onnxruntime: what a gRPC server with Python costs at the least.

python grpc_server.py CASE MODEL PORT

Any method takes the input's bytes and answers the output's: no protobuf is read or written.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
from peer_model import PeerModel


class AnyMethod(grpc.GenericRpcHandler):
    """Runs the model in the event loop, where it takes less time than a thread's switch."""

    def __init__(self, model: PeerModel) -> None:
        self._model = model

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, message: bytes, context: Any) -> bytes:
        return self._model.run_one(self._model.read(message))


async def serve(model: PeerModel, port: str) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((AnyMethod(model),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(PeerModel(sys.argv[1], sys.argv[2], threads=1), sys.argv[3]))
