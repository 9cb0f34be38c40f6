"""Ceilings: the most that this machine can do, measured on the provider's own kernels.

FLOP/s by a large matrix product, bytes/s by elementwise kernels over more data than caches hold,
and the time of dispatching a node by a chain of nodes that do next to nothing. Measured in a
separate process, and cached by machine, versions, provider and threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import DeadlineExceeded, OnwardError, ProviderError
from onward.graph.builder import OpBuilder
from onward.measure.machine import (
    cache_folder,
    digest,
    machine,
    read_record,
    versions,
    write_record,
)
from onward.measure.profile.timed_runs import Feeds, Measurement, RunSettings, measure
from onward.message_text import first_line
from onward.workers.worker import Worker

_CHAIN = 200  # nodes
_FEWEST_BYTES, _MOST_BYTES = 64 << 20, 512 << 20
_LONG_ENOUGH = 0.03  # seconds of a product after which a larger one is no faster
_SMALLEST, _LARGEST = 512, 8192  # rows and columns
_TIME_LIMIT = 600.0  # seconds that measuring may take; usually it takes a few
FLOAT32 = "float32"


@dataclass(frozen=True)
class Ceilings:
    """The most that one provider reached on this machine."""

    flops: Mapping[str, float]  # FLOP/s by type of number
    bytes_per_second: float
    dispatch: float  # seconds of a node that does nothing

    def flops_per_second(self, kind: str) -> float:
        """The rate of this type of number; that of float32 if it was not measured."""
        return self.flops.get(kind) or self.flops[FLOAT32]


def find_ceilings(
    provider: str,
    options: Mapping[str, Any],
    threads: int,
    kinds: Iterable[str] = (),
    *,
    fresh: bool = False,
    folder: Path | None = None,
) -> Ceilings:
    """The ceilings of a provider: from the cache, or measured now (some seconds)."""
    wanted = sorted({FLOAT32, *kinds})
    asked = {"provider": provider, "options": dict(options), "threads": threads}
    path = (folder or cache_folder("ceilings")) / record_name(asked)
    record = None if fresh else read_record(path)
    if record is None or not set(wanted) <= set(record.get("tried", ())):
        record = {**_measure_in_child({**asked, "kinds": wanted}), "tried": wanted}
        write_record(path, {**record, **asked, "machine": machine(), "versions": versions()})
    flops = {kind: rate for kind, rate in record["flops"].items() if kind in wanted}
    return Ceilings(flops, record["bytes_per_second"], record["dispatch"])


def record_name(asked: Mapping[str, Any]) -> str:
    """The cache file's name for this request, on this machine with these versions."""
    return f"{digest(machine(), versions(), asked)}.json"


def _measure_in_child(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in a child process: another engine's threads in this one would slow it down."""
    provider = asked["provider"]
    try:
        with Worker("onward.measure.roofline_worker", f"measuring {provider}") as worker:
            return worker.ask({"do": "measure", **asked}, timeout=_TIME_LIMIT)[0]
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"{provider}'s ceilings were not measured within {_TIME_LIMIT:g} s\n"
            "profile the model on another provider"
        ) from None
    except OnwardError as error:
        first = first_line(error)[:300]
        raise ProviderError(f"{provider}'s ceilings could not be measured: {first}") from error


def measure_ceilings(
    provider: str, options: Mapping[str, Any], threads: int, kinds: Sequence[str]
) -> Ceilings:
    """Measure in this process. A type that the provider cannot multiply is left out."""
    named = [(provider, options)]
    settings = RunSettings(providers=named, threads=threads, iterations=8, warm_up=1)
    flops = {FLOAT32: _peak(FLOAT32, settings)}
    for kind in kinds:
        if kind != FLOAT32:
            try:
                flops[kind] = _peak(kind, settings)
            except ProviderError:
                continue
    chain = measure(_chain(), _feed(np.ones(1, np.float32)), replace(settings, iterations=50))
    return Ceilings(flops, _bandwidth(settings), float(np.median(chain.timing.times)) / _CHAIN)


def _peak(kind: str, settings: RunSettings) -> float:
    """The best rate of ever larger products, until one takes long enough."""
    best, n = 0.0, _SMALLEST
    while n <= _LARGEST:
        a = np.ones((n, n), np.float32)
        seen = measure(_product(kind, n), _feed(a), settings)
        rate, seconds = _best(seen, lambda cost: cost.flops)
        best = max(best, rate)
        if seconds > _LONG_ENOUGH:
            break
        n *= 2
    return best


def _bandwidth(settings: RunSettings) -> float:
    size = min(max(_FEWEST_BYTES, 4 * last_cache_bytes()), _MOST_BYTES)
    x = np.ones(size // 4, np.float32)
    return _best(measure(_stream(), _feed(x), settings), lambda cost: cost.bytes)[0]


def _best(seen: Measurement, amount: Any) -> tuple[float, float]:
    """The best rate that any record reached, and the longest record's seconds."""
    pairs = [(amount(seen.graphs.cost(r)), r.duration) for r in seen.trace.records if r.duration]
    return max(a / seconds for a, seconds in pairs), max(seconds for _, seconds in pairs)


def _feed(x: Any) -> Feeds:
    return lambda _: {"x": x}


# -- the models --------------------------------------------------------------------------------


def _product(kind: str, n: int) -> ir.Model:
    """A product of n x n by n x n; the operands are cast before it, for types of any width."""
    op = OpBuilder(opset=20)
    x = op.input("x", FLOAT32, (n, n))
    if kind == "int8":
        weight = op.initializer("w", np.ones((n, n), np.int8))
        product = op.MatMulInteger(op.Cast(x, to=int(ir.DataType.UINT8)), weight)
        return op.model(y=op.ReduceMax(op.Cast(product, to=int(ir.DataType.FLOAT)), keepdims=0))
    dtype = {FLOAT32: ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}.get(kind)
    dtype = dtype or ir.DataType[kind.upper()]
    weight = op.Cast(op.initializer("w", np.ones((n, n), np.float32)), to=int(dtype))
    product = op.MatMul(op.Cast(x, to=int(dtype)), weight)
    return op.model(y=op.ReduceMax(op.Cast(product, to=int(ir.DataType.FLOAT)), keepdims=0))


def _stream() -> ir.Model:
    op = OpBuilder(opset=20)
    x = op.input("x", FLOAT32, ("n",))
    y = op.Add(op.Mul(x, 2.0), 1.0)
    return op.model(y=op.ReduceMax(y, keepdims=0))


def _chain() -> ir.Model:
    op = OpBuilder(opset=20)
    value = op.input("x", FLOAT32, (1,))
    for _ in range(_CHAIN):
        value = op.Sin(value)
    return op.model(y=value)


def last_cache_bytes() -> int:
    """The size of the largest cache; 0 where the system does not say."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes)
