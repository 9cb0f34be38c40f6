"""Packed size and reading speed of real weights: ours and zstd -3.

    python benchmarks/packing.py             # the table, and a file under benchmarks/results/
    python benchmarks/packing.py minilm      # only this model; nothing is written

The weights of MiniLM-L6 and MobileNetV2 as float32, bfloat16, float16, int8 (one scale a row) and
int4 (one scale for 32). Speeds are megabytes of tensors for each second of CPU time on one core,
the median of rounds in which both take turns; ours include the check of the CRC-32, zstd checks
nothing. Needs the package zstandard.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import compression_models
import ml_dtypes
import numpy as np
import onnx_ir as ir
import report
from rich.console import Console
from rich.table import Table

import onward
from onward.compress.packing.chunk_encoding import encode_tensor
from onward.graph.packed.chunks import decode_tensor

MODELS = ("minilm", "mobilenetv2")
ROUNDS = 9
Array = np.ndarray[Any, Any]


def int8(array: Array) -> Array:
    rows = array.reshape(len(array), -1)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return np.round(rows / np.where(largest, largest, 1) * 127).astype(np.int8)


def int4(array: Array) -> Array:
    blocks = array.reshape(-1)[: array.size // 32 * 32].reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    codes = np.round(blocks / np.where(largest, largest, 1) * 7).astype(np.int8).reshape(-1) & 15
    return (codes[0::2] | codes[1::2] << 4).astype(np.uint8)


TYPES: dict[str, tuple[ir.DataType, Callable[[Array], Array]]] = {
    "float32": (ir.DataType.FLOAT, lambda a: a),
    "bfloat16": (ir.DataType.BFLOAT16, lambda a: a.astype(ml_dtypes.bfloat16)),
    "float16": (ir.DataType.FLOAT16, lambda a: a.astype(np.float16)),
    "int8": (ir.DataType.INT8, int8),
    "int4": (ir.DataType.INT4, int4),
}


def weights(name: str) -> list[Array]:
    """The matrices and kernels of a model, and its vectors of some size."""
    model = onward.load(compression_models.path(name))
    tensors = (value.const_value for value in model.graph.initializers.values())
    return [
        tensor.numpy()
        for tensor in tensors
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size >= 256
    ]


def measure(name: str, kind: str) -> dict[str, Any]:
    import zstandard

    dtype, convert = TYPES[kind]
    chosen = [a for a in weights(name) if a.ndim >= 2 or "int" not in kind]
    arrays = [np.ascontiguousarray(convert(a)).reshape(-1).view(np.uint8) for a in chosen]
    total = sum(map(len, arrays))
    begin = time.process_time()
    ours = [memoryview(b"".join(encode_tensor(a, dtype))) for a in arrays]
    packing = time.process_time() - begin
    theirs = [zstandard.ZstdCompressor(level=3).compress(a.tobytes()) for a in arrays]
    unpacker = zstandard.ZstdDecompressor()

    def read_ours() -> None:
        for stored, array in zip(ours, arrays):
            zlib.crc32(stored)
            decode_tensor(stored, len(array))

    def read_theirs() -> None:
        for stored in theirs:
            unpacker.decompress(stored)

    times = [(cpu_time(read_ours), cpu_time(read_theirs)) for _ in range(ROUNDS)]
    our_time, their_time = np.median(np.array(times), axis=0)
    return {
        "model": name,
        "type": kind,
        "megabytes": total / 1e6,
        "ours": sum(map(len, ours)) / total,
        "zstd": sum(map(len, theirs)) / total,
        "ours_mb_s": total / our_time / 1e6,
        "zstd_mb_s": total / their_time / 1e6,
        "speed_ratio": float(np.median([b / a for a, b in times])),
        "packing_mb_s": total / packing / 1e6,
    }


def cpu_time(run: Callable[[], None]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title="packed share of the bytes, and reading speed of one core")
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=140).print(table)


def main() -> None:
    names = [name for name in MODELS if not sys.argv[1:] or name in sys.argv[1:]]
    rows = [measure(name, kind) for name in names for kind in TYPES]
    show(rows)
    if not sys.argv[1:]:
        print("written to", report.write("packing", rows))


if __name__ == "__main__":
    main()
