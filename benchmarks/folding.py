"""Time and memory to fold a huge constant: onnxscript's folder and ours, in separate processes.

python benchmarks/folding.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import onnx_ir as ir
import report

import onward
from onward.measure.memory.resident_memory import most_resident

ELEMENTS = 200_000_000


def bomb() -> ir.Model:
    """x + sum(Expand(1, (200 million,))): a constant that should not be materialized."""
    op = onward.OpBuilder()
    big = op.Expand(np.ones(1, np.float32), [ELEMENTS])
    return op.model(y=op.Add(op.input("x", "float32", (2,)), op.ReduceSum(big, keepdims=0)))


def one(folder: str) -> None:
    """Import a folder, fold, and print JSON."""
    model, start = bomb(), time.perf_counter()
    if folder == "onnxscript":
        from onnxscript import optimizer as engine
    else:
        from onward.passes import fold as engine
    imported = time.perf_counter()
    engine.fold_constants(model)
    folded = time.perf_counter()
    peak = most_resident() >> 20
    row = {"import_s": imported - start, "fold_s": folded - imported, "peak_mib": peak}
    print(json.dumps({"folder": folder, **row}))


def main() -> None:
    rows = []
    for folder in ("onnxscript", "onward"):
        command = [sys.executable, __file__, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1])
    print("written to", report.write("folding", rows))


if __name__ == "__main__":
    one(sys.argv[1]) if len(sys.argv) > 1 else main()
