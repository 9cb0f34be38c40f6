"""Measure the memory of quantization: many batches of data, and a model of 3 GB.

    python benchmarks/compression_memory.py [--layers 48]

calibration: a MobileNetV2 becomes int8 with 8 batches of data, and with 512. large: a model of 3 GB
with its weights in a second file becomes int4. Each runs in a separate process; its peak is that of
the resident memory, with pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import report

import onward
from onward.compress import quantize

WIDTH = 4096
BATCHES = (8, 512)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="compression_memory.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--layers", type=int, default=48, help="of 64 MiB each")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.one:
        run(*given.one)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure("calibration", str(count), batches=count) for count in BATCHES]
        write_large(Path(folder) / "large.onnx", given.layers)
        rows.append(measure("large", folder, megabytes=given.layers * 64))
    print(f"{rows[1]['peak_mb'] / rows[0]['peak_mb']:.3f} times the memory with 512 batches")
    print(report.write("compression_memory", rows))


def measure(case: str, argument: str, **facts: Any) -> dict[str, Any]:
    """The peak memory of a case in a separate process; `facts` are of its row."""
    command = [sys.executable, __file__, "--one", case, argument]
    began = time.perf_counter()
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(answer.splitlines()[-1])
    row = {"case": case, **facts, **found, "seconds": round(time.perf_counter() - began)}
    print(row, flush=True)
    return row


def run(case: str, argument: str) -> None:
    """Run a case: with a number of batches, or in a folder with a large model."""
    if case == "calibration":
        model = onward.new_model("mobilenet", image=(3, 64, 64), classes=10)
        quantize(model, batches(int(argument)), to="int8")
        facts = {}
    else:
        folder = Path(argument)
        quantize(folder / "large.onnx", to="int4").save(folder / "small.onnx")
        written = sum(file.stat().st_size for file in folder.glob("small*"))
        facts = {"written_mb": round(written / 1e6)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"peak_mb": round(peak), **facts}))


def batches(count: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield {"image": rng.normal(size=(16, 3, 64, 64)).astype(np.float32)}


def write_large(path: Path, layers: int) -> None:
    """A chain of matrix products, whose weights are written one by one to a second file."""
    rng = np.random.default_rng(0)
    nodes, weights, value, size = [], [], "x", WIDTH * WIDTH * 4
    data = path.with_suffix(".data")
    with data.open("wb") as file:
        for i in range(layers):
            file.write(rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 64)
            weight = onnx.TensorProto(
                name=f"w{i}", data_type=onnx.TensorProto.FLOAT, dims=[WIDTH, WIDTH],
                data_location=onnx.TensorProto.EXTERNAL,
            )  # fmt: skip
            place = {"location": data.name, "offset": str(i * size), "length": str(size)}
            for key, text in place.items():
                weight.external_data.add(key=key, value=text)
            weights.append(weight)
            nodes.append(onnx.helper.make_node("MatMul", [value, weight.name], [f"m{i}"]))
            nodes.append(onnx.helper.make_node("Tanh", [f"m{i}"], [f"t{i}"]))
            value = f"t{i}"
    kind = onnx.TensorProto.FLOAT
    shape = ["batch", WIDTH]
    graph = onnx.helper.make_graph(
        *(nodes, "chain"),
        [onnx.helper.make_tensor_value_info("x", kind, shape)],
        [onnx.helper.make_tensor_value_info(value, kind, shape)],
        weights,
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


if __name__ == "__main__":
    main(sys.argv[1:])
