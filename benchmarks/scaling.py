"""Simulate training on up to 1,024 processes, with a model that is checked by measured steps.

    python benchmarks/scaling.py                             # measures 1, 2 and 4 processes here
    python benchmarks/scaling.py results/distributed-*.json  # or takes the rows of distributed.py
    python benchmarks/scaling.py --small --output FILE       # a few steps, to see that it runs

The model has two unknowns, latency and bandwidth of the link; they are fitted to steps of 2 and 4
processes, the compute to steps of one. Predicted and measured times are printed for each, those of
a pattern of buckets that the fit has not seen included. Then come the curves for a cluster of GPUs,
whose links are assumed, not measured. Writes a result file, and the curves as SVG next to it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import report

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket
from onward.distributed.simulation.calibration import (
    SimulationCalibration,
    StepMeasurement,
    calibrate,
)
from onward.distributed.simulation.cluster import Cluster, Link
from onward.distributed.simulation.scaling_curve import RANKS, scaling_curve
from onward.distributed.simulation.scaling_plot import ScalingPanel, ScalingSeries, draw_scaling
from onward.distributed.simulation.simulated_step import StepWork
from onward.runner.figures.save import save_figure

MIB = 1 << 20
MEASURED = (1, 2, 4)
FITTED = {"4 x 4 MiB": (4 * MIB,) * 4, "16 x 512 KiB": (MIB // 2,) * 16}
HELD_OUT = {"8 x 1 MiB": (MIB,) * 8}
PATTERNS = FITTED | HELD_OUT
PRODUCTS = 48  # of matrices, in the compute of a step
WIDTH = 320  # of a matrix
STEPS, ROUNDS, SMALL_STEPS = 15, 3, 2
LIMIT = 240.0  # seconds, after which measuring has failed

# A transformer of 1.3 G parameters in bfloat16 on 400 TFLOP/s, 8 GPUs on a node; assumed
PARAMETERS, ROWS_TIMES_LENGTH, FLOPS = 1.3e9, 16 * 2048, 400e12
NODE = Cluster(
    per_node=8,
    inside=Link(latency=5e-6, bandwidth=400e9),
    between=Link(latency=1e-5, bandwidth=50e9),
    algorithm="hierarchical",
)
SPREAD = 0.03  # relative standard deviation of a segment's time


# -- measuring ------------------------------------------------------------------------------------


def measure(steps: int, rounds: int) -> list[dict[str, Any]]:
    """Steps of 1, 2 and 4 gloo processes of one thread, for each pattern of buckets."""
    rows = []
    for ranks in MEASURED:
        for name, seconds in run_group(ranks, steps, rounds).items():
            rows.append({"pattern": name, "ranks": ranks, "seconds": seconds})
            print(f"measured {name:>14} on {ranks}: {1e3 * seconds:8.2f} ms", flush=True)
    return rows


def run_group(ranks: int, steps: int, rounds: int) -> dict[str, float]:
    """The seconds of a step by pattern, as rank 0 has them."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        children = [
            context.Process(target=join_and_measure, args=(folder, rank, ranks, steps, rounds))
            for rank in range(ranks)
        ]
        for child in children:
            child.start()
        ends = time.monotonic() + LIMIT
        for child in children:
            child.join(max(0.0, ends - time.monotonic()))
        for child in children:
            child.kill()
            child.join()
        answer = Path(folder) / "answer.json"
        if not answer.exists():
            sys.exit(f"{ranks} processes did not answer within {LIMIT:g} s")
        return dict(json.loads(answer.read_text()))


def join_and_measure(folder: str, rank: int, ranks: int, steps: int, rounds: int) -> None:
    """In a child: each pattern in turns, the median of each round, of these the fastest."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    found: dict[str, list[float]] = {name: [] for name in PATTERNS}
    for _ in range(rounds):
        for name, buckets in PATTERNS.items():
            vectors = [torch.zeros(size // 4) for size in buckets]
            times = [timed_step(vectors, ranks) for _ in range(steps)]
            found[name].append(statistics.median(times))
    if rank == 0:
        fastest = {name: min(each) for name, each in found.items()}
        Path(folder, "answer.json").write_text(json.dumps(fastest))
    dist.barrier()
    dist.destroy_process_group()


def timed_step(vectors: list[Any], ranks: int) -> float:
    """A third of the products, then the rest, with an all_reduce after each bucket's part."""
    import torch
    from torch import distributed as dist

    a = torch.full((WIDTH, WIDTH), 1e-3)
    if ranks > 1:
        dist.barrier()
    began = time.perf_counter()
    for _ in range(PRODUCTS // 3):
        a @ a
    works, done = [], 0
    for i, vector in enumerate(vectors):
        until = (PRODUCTS - PRODUCTS // 3) * (i + 1) // len(vectors)
        for _ in range(until - done):
            a @ a
        done = until
        if ranks > 1:
            works.append(dist.all_reduce(vector, async_op=True))
    for work in works:
        work.wait()
    return time.perf_counter() - began


def read_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, tuple[int, ...]]]:
    """The rows of `ours` in a result of distributed.py; a pattern is a model in 1 MiB buckets."""
    rows, patterns = [], {}
    for row in json.loads(path.read_text())["rows"]:
        if row.get("engine") != "ours":
            continue
        ranks, name = int(row["processes"]), str(row["model"])
        rows.append({"pattern": name, "ranks": ranks, "seconds": row["ms"] / 1e3})
        if ranks > 1 and "bytes_sent" in row:
            total = round(row["bytes_sent"] * ranks / (2 * (ranks - 1)))
            count = math.ceil(total / MIB)
            patterns[name] = (max(64, total // count // 64 * 64),) * count
    known = {row["pattern"] for row in rows if row["ranks"] == 1}
    usable = [row for row in rows if row["pattern"] in patterns and row["pattern"] in known]
    if not usable:
        sys.exit(f"{path} has no rows of ours on 1 and on more processes: run --ranks 1,2,4")
    return usable, patterns


# -- the model ------------------------------------------------------------------------------------


def check_model(
    rows: list[dict[str, Any]], patterns: dict[str, tuple[int, ...]], held_out: set[str]
) -> tuple[SimulationCalibration, list[dict[str, Any]]]:
    """Fit the link, and predict every row."""
    points = [
        StepMeasurement(
            ranks=row["ranks"], seconds=row["seconds"], buckets=patterns[row["pattern"]]
        )
        for row in rows
    ]
    names = [row["pattern"] for row in rows]
    used = [
        point
        for point, name in zip(points, names)
        if name not in held_out or point.ranks == 1  # compute is measured for all
    ]
    fitted = calibrate(used, cores=os.cpu_count())
    checked = []
    for point, row in zip(points, rows):
        seconds = fitted.predict(point.buckets, point.ranks).seconds
        checked.append(
            {
                **row,
                "predicted": seconds,
                "error": seconds / point.seconds - 1,
                "fitted": row["pattern"] not in held_out,
            }
        )
    return fitted, checked


def transformer_work() -> StepWork:
    """A step of the assumed transformer, in buckets of 25 MiB of float32 gradients."""
    count = round(4 * PARAMETERS / (25 * MIB))
    seconds = 6 * PARAMETERS * ROWS_TIMES_LENGTH / FLOPS
    return StepWork(
        buckets=tuple(Bucket(names=(), nbytes=25 * MIB, slots=2) for _ in range(count)),
        forward=(seconds / 3 / count,) * count,
        backward=(seconds * 2 / 3 / count,) * count,
    )


LAYOUTS: dict[str, Any] = {
    "data parallel": lambda ranks: Parallel(),
    "ZeRO 2": lambda ranks: Parallel(shard=ranks, zero=2),
    "ZeRO 3": lambda ranks: Parallel(shard=ranks),
    "hybrid ZeRO 3": lambda ranks: Parallel(shard=min(ranks, NODE.per_node)),
}


def curves() -> dict[str, list[dict[str, float]]]:
    """The efficiency of each layout, and of data parallel in one flat ring."""
    work = transformer_work()
    flat = Cluster(per_node=NODE.per_node, inside=NODE.inside, between=NODE.between)
    wanted = {name: (layout, NODE) for name, layout in LAYOUTS.items()}
    wanted["data parallel, flat ring"] = (LAYOUTS["data parallel"], flat)
    found = {}
    for name, (layout, cluster) in wanted.items():
        points = scaling_curve(work, layout, cluster, ranks=RANKS, spread=SPREAD)
        found[name] = [
            {"ranks": each.ranks, "efficiency": each.efficiency, "hidden": each.hidden}
            for each in points
        ]
        print(f"{name:>26}", *(f"{100 * each.efficiency:5.1f}" for each in points), flush=True)
    return found


def draw(checked: list[dict[str, Any]], found: dict[str, list[dict[str, float]]]) -> Any:
    """Curves to 1,024 processes, and below it how well measured steps are predicted."""
    simulated = [
        ScalingSeries(name, [(each["ranks"], each["efficiency"]) for each in points], color=i)
        for i, (name, points) in enumerate(found.items())
    ]
    small = []
    for i, name in enumerate(dict.fromkeys(row["pattern"] for row in checked)):
        rows = [row for row in checked if row["pattern"] == name]
        alone = next(row["seconds"] for row in rows if row["ranks"] == 1)
        seen = "" if rows[0]["fitted"] else ", not in the fit"
        for kind, key in (("predicted", "predicted"), ("measured", "seconds")):
            points = [(row["ranks"], alone / row[key]) for row in rows]
            label = f"{name}: {kind}{seen}"
            small.append(ScalingSeries(label, points, measured=kind == "measured", color=i))
    first = (
        f"Simulated: {PARAMETERS / 1e9:g} G parameters, 8 GPUs on a node, "
        f"{NODE.between.bandwidth / 1e9:g} GB/s between nodes"
    )
    title = f"Checked: gloo processes of 1 thread on {os.cpu_count()} cores"
    most = max(int(row["ranks"]) for row in checked)
    return draw_scaling(
        [ScalingPanel(first, simulated, RANKS[-1]), ScalingPanel(title, small, most)]
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="?", type=Path, help="a result file of distributed.py")
    parser.add_argument("--small", action="store_true", help="measure a few steps only")
    parser.add_argument("--output", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.rows is not None:
        rows, patterns = read_rows(given.rows)
        held_out: set[str] = set()
    else:
        rows = measure(SMALL_STEPS, 1) if given.small else measure(STEPS, ROUNDS)
        patterns, held_out = PATTERNS, set(HELD_OUT)
    fitted, checked = check_model(rows, patterns, held_out)
    print(
        f"link: {1e6 * fitted.link.latency:.1f} us, {fitted.link.bandwidth / 1e9:.2f} GB/s;"
        " predicted / measured ms"
    )
    for row in checked:
        print(
            f"{row['pattern']:>14} on {row['ranks']}: {1e3 * row['predicted']:8.2f} / "
            f"{1e3 * row['seconds']:8.2f}  {100 * row['error']:+6.1f} %"
            f"{'' if row['fitted'] else '  (not in the fit)'}"
        )
    print(f"{'efficiency on processes':>26}", *(f"{ranks:5}" for ranks in RANKS))
    found = curves()
    link = {"latency": fitted.link.latency, "bandwidth": fitted.link.bandwidth}
    path = report.write("scaling", checked, given.output, link=link, curves=found, spread=SPREAD)
    save_figure(draw(checked, found), path.with_suffix(".svg"))
    print(f"written: {path} and {path.with_suffix('.svg').name}")


if __name__ == "__main__":
    main()
