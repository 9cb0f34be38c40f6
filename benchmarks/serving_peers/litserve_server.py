"""LitServe with raw bodies: python litserve_server.py CASE MODEL PORT BATCH

BATCH 1: no batching, a worker per core for the larger model; more: batches with padding.
"""

# annotations are objects here: LitServe hands the type of a request to FastAPI

import sys
from typing import Annotated, Any

import litserve
from fastapi import Depends, Request, Response
from peer_model import CORES, PeerModel

CASE, PATH, PORT, BATCH = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
WORKERS = CORES if CASE == "minilm" and BATCH == 1 else 1


async def raw_body(request: Request) -> bytes:
    """LitServe parses JSON unless the request's type says otherwise."""
    return await request.body()


class Single(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = PeerModel(CASE, PATH, threads=1)

    def decode_request(self, request: Annotated[bytes, Depends(raw_body)]) -> Any:
        return self.model.read(request)

    def predict(self, x: Any) -> bytes:
        return self.model.run_one(x)

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="application/octet-stream")


class Batched(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = PeerModel(CASE, PATH, threads=1 if CASE == "mlp" else CORES)

    def decode_request(self, request: Annotated[bytes, Depends(raw_body)]) -> Any:
        return self.model.read(request)

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs  # joined and padded by the model

    def predict(self, x: list[Any]) -> list[bytes]:
        return self.model.run_batch(x)

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    api = Batched(max_batch_size=BATCH, batch_timeout=0.002) if BATCH > 1 else Single()
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=WORKERS)
    server.run(
        host="127.0.0.1", port=PORT, log_level="warning", access_log=False,
        generate_client_file=False,
    )  # fmt: skip
