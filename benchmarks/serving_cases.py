"""The cases of benchmarks/serving.py: models, requests, and how each server takes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime

import onward
from onward.serving.load_test.infer_payloads import grpc_message, http_request, infer_payload

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
PEERS = Path(__file__).parent / "serving_peers"
COUNT = 64  # different requests
BATCH = 32  # the largest batch of peers that batch
EMBEDDING = "461"  # MiniLM's output that users want: the mean of its tokens


@dataclass(frozen=True)
class Engine:
    """A server: its script among the peers (none: ours), its batching, the form of its requests."""

    name: str
    script: str = ""
    words: tuple[str, ...] = ()
    form: str = "raw"  # raw, json (of the protocol) or binary (of the protocol)

    def command(self, python: str, case: str, model: Path, port: int, grpc_port: int) -> list[str]:
        if self.script:
            script = str(PEERS / self.script)
            return [python, script, case, str(model), str(port), *self.words]
        command = [sys.executable, "-m", "onward", "serve", str(model), "--http-port", str(port)]
        config = model.with_suffix(".toml")
        given = ["--config", str(config)] if config.exists() else []
        return [*command, "--grpc-port", str(grpc_port), *given, *self.words]


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("onward", form="binary"),
        Engine("uvicorn", "uvicorn_server.py"),
        Engine("litserve", "litserve_server.py", ("1",)),
        Engine("litserve-batched", "litserve_server.py", (str(BATCH),)),
        Engine("ray", "ray_server.py", ("1",)),
        Engine("ray-batched", "ray_server.py", (str(BATCH),)),
        Engine("mlserver", "mlserver_server.py", ("1",), form="json"),
        Engine("mlserver-batched", "mlserver_server.py", (str(BATCH),), form="json"),
        Engine("uvicorn-workers", "uvicorn_server.py", ("2",)),
    )
}
# uvicorn with several processes is measured only if asked for: it is another machine's share
USUAL = tuple(name for name in ENGINES if name != "uvicorn-workers")
CANNOT = {("minilm", "mlserver-batched")}  # it joins requests of one shape only


@dataclass(frozen=True)
class Case:
    """A model's file, its requests and their answers from bare onnxruntime."""

    name: str
    model: Path
    feeds: Sequence[Feeds]
    answers: Sequence[Array]

    def payloads(self, engine: Engine, url: str) -> list[bytes]:
        return [self._payload(engine, url, feeds) for feeds in self.feeds]

    def _payload(self, engine: Engine, url: str, feeds: Feeds) -> bytes:
        if engine.form == "binary":
            return infer_payload(url, self.model.stem, feeds)
        if engine.form == "json":
            return infer_payload(url, "model", feeds, "json")
        data = feeds["x" if "x" in feeds else "input_ids"].tobytes()
        return http_request(url, "/predict", data, {"Content-Type": "application/octet-stream"})

    def grpc_messages(self) -> list[bytes]:
        return [grpc_message(self.model.stem, feeds) for feeds in self.feeds]

    def check(self, engine: Engine, headers: dict[str, str], body: bytes) -> None:
        """Compare the answer to the first request; speed does not count without it."""
        if engine.form == "json":
            found = np.array(json.loads(body)["outputs"][0]["data"], np.float32)
        else:
            length = int(headers.get("inference-header-content-length", 0))
            found = np.frombuffer(body[length:], np.float32)
        expected = self.answers[0].ravel()
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-2, atol=1e-3):
            raise ValueError(f"{engine.name} answers {self.name} wrongly")


def make_case(name: str, folder: Path) -> Case:
    """`mlp`: 64 to 64 to 10. `minilm`: sentences of 5 to 128 tokens, most of them short."""
    path = folder / f"{name}.onnx"
    rng = np.random.default_rng(0)
    if name == "mlp":
        op = onward.OpBuilder()
        w = models.Weights(op)
        x = op.input("x", "float32", ("batch", 64))
        hidden = op.Relu(op.Gemm(x, w(64, 64), w.full(0, 64)))
        onward.save(op.model(y=op.Gemm(hidden, w(64, 10), w.full(0, 10))), path)
        feeds = [{"x": rng.normal(size=(1, 64)).astype(np.float32)} for _ in range(COUNT)]
    else:
        feeds = _write_minilm(path, rng)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return Case(name, path, feeds, [session.run(None, each)[0] for each in feeds])


def _write_minilm(path: Path, rng: np.random.Generator) -> list[Feeds]:
    (real,) = (each for each in models.catalog.MODELS if each.name == "minilm")
    model = onward.load(real.path())
    model.graph.outputs[:] = [value for value in model.graph.outputs if value.name == EMBEDDING]
    onward.save(model, path)
    path.with_suffix(".toml").write_text(
        "[models.minilm]\ninstances = 2\nthreads = 1\nmax_batch_size = 8\n"
        "length_buckets = [8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128]\n"
        "[models.minilm.padding]\n"
        'input_ids = { axis = 1, mask = "attention_mask" }\nattention_mask = { axis = 1 }\n'
    )
    lengths = np.clip(rng.lognormal(3.2, 0.7, COUNT), 5, 128).astype(int)
    tokens = [rng.integers(1000, 20_000, (1, length)) for length in lengths]
    return [{"input_ids": each, "attention_mask": np.ones_like(each)} for each in tokens]
