"""What a call costs: Onward's overhead over bare onnxruntime, and each provider on small models.

    python benchmarks/inference.py            # both tables, and a file under benchmarks/results/
    python benchmarks/inference.py overhead   # the first table alone

The overhead is measured in pairs: the same model, threads and feeds in the same process, blocks of
calls of the two sessions taking turns, so that what the machine does meanwhile hits both alike.
Providers are measured each in a process of its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import report
from rich.console import Console
from rich.table import Table

import onward

BLOCKS, CALLS = 101, 400


def add() -> tuple[ir.Model, dict[str, Any]]:
    """One Add of four numbers: nothing but the call."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    return op.model(y=op.Add(x, x)), {"x": np.ones((1, 4), np.float32)}


def mlp() -> tuple[ir.Model, dict[str, Any]]:
    """784-256-256-10, batch 1."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    y = x = op.input("x", "float32", ("batch", 784))
    for layer, (rows, columns) in enumerate([(784, 256), (256, 256), (256, 10)]):
        w = op.initializer(f"w{layer}", rng.normal(0, 0.05, (rows, columns)).astype(np.float32))
        y = op.Gemm(y, w, op.initializer(f"b{layer}", np.zeros(columns, np.float32)))
        y = op.Relu(y) if layer < 2 else y
    return op.model(y=y), {x.name: rng.normal(size=(1, 784)).astype(np.float32)}


def many_inputs() -> tuple[ir.Model, dict[str, Any]]:
    """Twelve inputs, twelve outputs: what names cost."""
    op = onward.OpBuilder()
    inputs = [op.input(f"x{i}", "float32", (4,)) for i in range(12)]
    outputs = {f"y{i}": op.Neg(x) for i, x in enumerate(inputs)}
    return op.model(**outputs), {x.name: np.ones(4, np.float32) for x in inputs}


def cnn() -> tuple[ir.Model, dict[str, Any]]:
    """Three convolutions with BatchNormalization on 32 x 32 images, batch 8."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    y = op.input("x", "float32", ("batch", 3, 32, 32))
    for layer, (inputs, outputs, stride) in enumerate([(3, 32, 1), (32, 64, 2), (64, 128, 2)]):
        w = rng.normal(0, 0.1, (outputs, inputs, 3, 3)).astype(np.float32)
        y = op.Conv(y, op.initializer(f"w{layer}", w), pads=[1] * 4, strides=[stride] * 2)
        ones, zeros = np.ones(outputs, np.float32), np.zeros(outputs, np.float32)
        terms = [
            op.initializer(f"{n}{layer}", a) for n, a in zip("sbmv", (ones, zeros, zeros, ones))
        ]
        y = op.Relu(op.BatchNormalization(y, *terms))
    model = op.model(y=op.Flatten(op.GlobalAveragePool(y)))
    return model, {"x": rng.normal(size=(8, 3, 32, 32)).astype(np.float32)}


MODELS: dict[str, Callable[[], tuple[ir.Model, dict[str, Any]]]] = {
    "add": add,
    "twelve inputs": many_inputs,
    "mlp, batch 1": mlp,
    "cnn, batch 8": cnn,
}


def overhead() -> list[dict[str, Any]]:
    """Microseconds a call takes longer than bare onnxruntime's, paired, one thread."""
    import onnxruntime

    rows = []
    for name in ("add", "twelve inputs", "mlp, batch 1"):
        model, feeds = MODELS[name]()
        data = ir.to_proto(model).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        bare = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        ours = onward.InferenceSession(data, options, ["CPUExecutionProvider"])
        pairs = [(_block(bare.run, feeds), _block(ours.run, feeds)) for _ in range(BLOCKS)]
        rows.append(
            {
                "model": name,
                "bare_us": statistics.median(a for a, _ in pairs),
                "onward_us": statistics.median(b for _, b in pairs),
                "overhead_us": statistics.median(b - a for a, b in pairs),
            }
        )
    return rows


def _block(run: Callable[..., Any], feeds: dict[str, Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        run(None, feeds)
    return (time.perf_counter() - start) / CALLS * 1e6


def providers() -> list[dict[str, Any]]:
    """Each provider in its own process, and bare onnxruntime beside them."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MODELS.items():
            model, feeds = make()
            path, data = Path(folder) / "model.onnx", Path(folder) / "feeds.npz"
            onward.save(model, path)
            np.savez(data, **feeds)
            for engine in ("bare onnxruntime", *onward.get_available_providers()):
                command = [sys.executable, __file__, "one", str(path), str(data), engine]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.append({"model": name, "engine": engine, **json.loads(done.stdout)})
    return rows


def one(path: str, data: str, engine: str) -> None:
    """Measure one engine on one model, in this process; print JSON."""
    feeds = dict(np.load(data))
    start = time.perf_counter()
    session = _session(path, engine)
    session.run(None, feeds)
    first = time.perf_counter() - start
    for _ in range(10):
        session.run(None, feeds)
    times = []
    deadline = time.perf_counter() + 3
    while len(times) < 200 and time.perf_counter() < deadline:
        start = time.perf_counter()
        session.run(None, feeds)
        times.append((time.perf_counter() - start) * 1e6)
    print(json.dumps({"median_us": statistics.median(times), "first_s": first}))


def _session(path: str, engine: str) -> Any:
    if engine == "bare onnxruntime":
        import onnxruntime

        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    options = onward.SessionOptions(disable_fallback=True)
    return onward.InferenceSession(path, options, providers=[engine])


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{v:,.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def main() -> None:
    costs = overhead()
    show("a call's overhead over bare onnxruntime (one thread, paired)", costs)
    if sys.argv[1:] == ["overhead"]:
        return
    engines = providers()
    show("median of a call, each engine in its own process", engines)
    print("written to", report.write("inference", engines, overhead=costs))


if __name__ == "__main__":
    one(*sys.argv[2:]) if sys.argv[1:2] == ["one"] else main()
