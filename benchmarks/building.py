"""How long building a gradient graph takes: models of 1,000 nodes, CPU seconds, warm.

python benchmarks/building.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import report

import onward

NODES = 1000
WIDTH = 16


def layers(batch: int | str) -> ir.Model:
    """tanh(h w + b), over and over."""
    op = onward.OpBuilder()
    h = op.input("x", "float32", (batch, WIDTH))
    for i in range(NODES // 3):
        w = op.initializer(f"w{i}", np.eye(WIDTH, dtype=np.float32))
        h = op.Tanh(op.Add(op.MatMul(h, w), op.initializer(f"b{i}", np.zeros(WIDTH, np.float32))))
    return op.model(loss=op.ReduceMean(h, keepdims=0))


def blocks(batch: int | str) -> ir.Model:
    """Residual blocks as transformers have them: norm, product, reshape, softmax, gelu."""
    op = onward.OpBuilder()
    h = op.input("x", "float32", (batch, 8, WIDTH))
    scale = op.initializer("scale", np.ones(WIDTH, np.float32))
    for i in range(NODES // 10):
        w, b = (
            op.initializer(f"w{i}", np.eye(WIDTH, dtype=np.float32)),
            op.initializer(f"b{i}", np.zeros(WIDTH, np.float32)),
        )
        a = op.Add(op.MatMul(op.LayerNormalization(h, scale, axis=-1), w), b)
        heads = op.Transpose(op.Reshape(a, [0, 8, 4, 4]), perm=[0, 2, 1, 3])
        mixed = op.Reshape(
            op.Transpose(op.Softmax(heads, axis=-1), perm=[0, 2, 1, 3]), [0, 8, WIDTH]
        )
        h = op.Add(h, op.Gelu(mixed))
    return op.model(loss=op.ReduceMean(h, keepdims=0))


def seconds(write: Callable[[int | str], ir.Model], batch: int | str) -> dict[str, float | str]:
    model = write(batch)
    names = [name for name in model.graph.initializers if name[0] in "wb"]
    start = time.process_time()
    extended = onward.gradient(model, "loss", names)
    spent = time.process_time() - start
    counts = {"nodes": len(model.graph), "nodes_after": len(extended.graph)}
    return {"model": write.__name__, "batch": str(batch), **counts, "cpu_s": round(spent, 3)}


def main() -> None:
    rows = []
    for write in (layers, blocks):
        for batch in (4, "batch"):
            seconds(write, batch)
            rows.append(
                min((seconds(write, batch) for _ in range(3)), key=lambda row: row["cpu_s"])
            )
            print(rows[-1])
    print("written to", report.write("building", rows))


if __name__ == "__main__":
    main()
