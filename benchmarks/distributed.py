"""Measure a training step with AdamW on 2 processes of 1 thread: ours, torch DDP, FSDP2.

    python benchmarks/distributed.py                   # every model and engine, and a result file
    python benchmarks/distributed.py tf8 --engines ours,ddp --ranks 1,2,4
    python benchmarks/distributed.py --small           # a few steps, to see that it runs

Each process has a batch of its own. Every engine runs in processes of its own, in turns; figures
are medians of medians. For `ours` the share of the communication that is hidden behind the backward
pass is measured as well: (compute alone + communication alone - step) / communication alone, where
communication is that of gradients. With `--ranks`, ours is also measured on other numbers of
processes: scaling.py checks its model by them.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import racing
import report

MODELS = ("mlp32", "tf8")
ENGINES = ("ours", "ours-inductor", "ours-zero3", "ddp", "ddp-compile", "fsdp2")
PEERS = ("ddp", "ddp-compile", "fsdp2")
STEPS, SMALL_STEPS = 40, 3  # of one answer
BUCKET = 1 << 20  # bytes
SMALL_ENGINES = ("ours", "ours-zero3", "ddp", "fsdp2")

Step = Callable[[], float]


class MeasuredSum:
    """Settings of gradients that are summed as they are, or kept where `is_on` is False.

    A compression of `Parallel`, so it sees every bucket: `reduce_all` sums vectors of these sizes.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._buckets: list[tuple[Any, Any]] = []  # a reducer, and a vector of its size

    def open(self, communicator: Any, places: Any) -> Any:
        import torch

        from onward.distributed.compression.uncompressed import SumReducer

        reducer = SumReducer(communicator)
        self._buckets.append((reducer, torch.zeros(places.size)))
        return MeasuredReducer(self, reducer)

    def bytes_sent(self, places: Any, size: int) -> int:
        from onward.distributed.ring_bytes import ring_bytes

        return ring_bytes("all_reduce", 4 * int(places.size), size)

    def reduce_all(self) -> None:
        """The communication alone: start to sum all buckets, and wait for it."""
        for work in [reducer.reduce(vector) for reducer, vector in self._buckets]:
            work.wait()


class MeasuredReducer:
    """The reducer of a bucket, which does nothing where its settings are not on."""

    def __init__(self, settings: MeasuredSum, reducer: Any) -> None:
        self._settings, self._reducer = settings, reducer

    def reduce(self, vector: Any, scale: float = 1.0) -> Any:
        return self._reducer.reduce(vector, scale) if self._settings.is_on else self

    def wait(self) -> None: ...

    def undo(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Any) -> None: ...


def export(name: str, folder: str) -> None:
    """Write a model as torch exports it, and its feeds."""
    import numpy as np
    import torch
    from backward import modules

    import onward

    module, x, labels = modules(name)
    exported = torch.onnx.export(module.eval(), (x,), dynamo=True, optimize=False, verbose=False)
    assert exported is not None
    onward.save(exported.model, Path(folder) / "model.onnx")
    feeds = {exported.model.graph.inputs[0].name: x.numpy(), "labels": labels.numpy()}
    np.savez(Path(folder) / "feeds.npz", **feeds)


def ours(folder: str, engine: str = "onnxruntime", **settings: Any) -> tuple[Step, Any]:
    """A step of ours, and its session; `settings` are those of Parallel."""
    import numpy as np

    import onward
    from onward import losses, optimizers
    from onward.distributed import Parallel

    session = onward.TrainingSession(
        Path(folder) / "model.onnx",
        losses.CrossEntropy(),
        optimizers.AdamW(),
        {"outputs": []},
        sess_options=onward.SessionOptions(intra_op_num_threads=1),
        providers=["cpu" if engine == "onnxruntime" else engine],
        parallel=Parallel(**settings),
    )
    feeds = dict(np.load(Path(folder) / "feeds.npz"))
    return lambda: float(session.step(feeds)["loss"]), session


def peer(name: str, engine: str) -> Step:
    import torch
    from backward import modules
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn import functional as f
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    module, x, labels = modules(name)
    if engine == "fsdp2":
        for block in getattr(module, "blocks", []):
            fully_shard(block)
        fully_shard(module)
        call: Any = module
    else:
        call = DistributedDataParallel(module, gradient_as_bucket_view=True)
        call = torch.compile(call) if engine == "ddp-compile" else call
    optimizer = torch.optim.AdamW(module.parameters(), fused=engine != "fsdp2")

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = f.cross_entropy(call(x), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def one(name: str, engine: str, folder: str, ranks: str, steps: str) -> None:
    """In a child: rank 0 of `ranks`; starts the others, and answers each line of its input."""
    warnings.filterwarnings("ignore")
    others: list[subprocess.Popen[bytes]] = []
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks}
        known |= {"LOCAL_WORLD_SIZE": ranks, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(Path(__file__).resolve()), "one", name, engine, folder]
        words += [ranks, steps]
        for rank in range(1, int(ranks)):
            mine = {**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            others.append(subprocess.Popen(words, env=mine, stdin=subprocess.DEVNULL))
        os.environ.update({**known, "RANK": "0", "LOCAL_RANK": "0"})
    try:
        _answer(name, engine, folder, int(steps))
    finally:
        for process in others:
            process.kill()


def _answer(name: str, engine: str, folder: str, steps: int) -> None:
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    session, measured, measured_step = None, MeasuredSum(), None
    if engine in PEERS:
        step = peer(name, engine)
    elif engine == "ours":
        step, session = ours(folder, bucket=BUCKET)
        measured_step, _ = ours(folder, bucket=BUCKET, compression=measured)
    elif engine == "ours-inductor":
        step, session = ours(folder, "inductor", bucket=BUCKET)
    else:
        step, session = ours(folder, shard=int(os.environ["WORLD_SIZE"]), zero=3)
    loss = step()
    is_first = dist.get_rank() == 0
    if is_first:
        print("ready", flush=True)
    asked = iter(sys.stdin) if is_first else None
    while True:  # rank 0 tells the others whether another answer is asked for
        more = torch.tensor([0 if asked is not None and next(asked, None) is None else 1])
        dist.broadcast(more, 0)
        if not more:
            return
        found = {"ms": _median_time(step, steps), "loss": loss}
        if session is not None:
            found["bytes_sent"] = _bytes_sent(session, step)
        if measured_step is not None:
            found |= _parts(measured, measured_step, steps)
        if is_first:
            print(json.dumps(found), flush=True)


def _median_time(call: Callable[[], Any], times: int) -> float:
    """Milliseconds of a call, which all processes begin together."""
    from torch import distributed as dist

    found = []
    for _ in range(times):
        dist.barrier()
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found)


def _bytes_sent(session: Any, step: Step) -> int:
    before = session.bytes_sent
    step()
    return int(session.bytes_sent - before)


def _parts(measured: MeasuredSum, step: Step, steps: int) -> dict[str, float]:
    """Milliseconds of the computation alone and of the communication alone."""
    measured.is_on = False
    compute = _median_time(step, steps)
    measured.is_on = True
    communication = _median_time(measured.reduce_all, steps)
    return {"compute_ms": compute, "communication_ms": communication}


def measure(
    name: str, engines: list[str], folder: str, rounds: int, ranks: str, steps: int
) -> list[Any]:
    """A row for each engine, all measured in turns."""
    children = {}
    for engine in engines:
        racing.tell(f"{name} {engine} on {ranks}")
        children[engine] = racing.start(__file__, name, engine, folder, ranks, str(steps))
        racing.read_line(children[engine])
    rows = []
    for engine, answers in racing.race(children, rounds).items():
        row: dict[str, Any] = {"model": name, "engine": engine, "processes": int(ranks)}
        for key in answers[0]:
            row[key] = statistics.median(each[key] for each in answers)
        if row.get("communication_ms") and int(ranks) > 1:
            visible = max(row["ms"] - row["compute_ms"], 0.0)
            row["hidden"] = max(1.0 - visible / row["communication_ms"], 0.0)
        rows.append(row)
        racing.tell(f"{name} {engine}: {row['ms']:.3f} ms")
    return rows


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times faster than each peer ours is, on 2 processes."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        by = {r["engine"]: r["ms"] for r in rows if r["model"] == name and r["processes"] == 2}
        for mine in ("ours", "ours-inductor"):
            for engine in PEERS:
                if engine in by and mine in by:
                    faster = by[engine] / by[mine]
                    found.append({"model": name, "ours": mine, "peer": engine, "faster": faster})
    return found


def show(rows: list[Any], ahead: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("model", "engine", "processes", "ms", "compute", "communication", "hidden")
    for row in rows:
        parts = [row.get(key) for key in ("compute_ms", "communication_ms")]
        numbers = ["" if part is None else f"{part:.3f}" for part in parts]
        hidden = f"{row['hidden']:.0%}" if "hidden" in row else ""
        where = (row["model"], row["engine"], str(row["processes"]), f"{row['ms']:.3f}")
        table.add_row(*where, *numbers, hidden)
    console.print(table)
    for row in ahead:
        faster = f"{row['faster']:.2f} times as fast as {row['peer']}"
        print(f"{row['model']}: {row['ours']} is {faster}")


def main() -> None:
    ranks = ["2"]
    if "--ranks" in sys.argv:
        at = sys.argv.index("--ranks")
        ranks = sys.argv[at + 1].split(",")
        del sys.argv[at : at + 2]
    is_small = "--small" in sys.argv
    if is_small:
        sys.argv.remove("--small")
    usual = SMALL_ENGINES if is_small else ENGINES
    given = racing.arguments(__doc__ or "", MODELS[:1] if is_small else MODELS, ENGINES, usual)
    steps, rounds = (SMALL_STEPS, 1) if is_small else (STEPS, given.rounds)
    rows = []
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, str(Path(__file__).resolve()), "export", name, folder]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            for count in ranks:
                engines = given.engines if count == "2" else ["ours"]
                rows += measure(name, engines, folder, rounds, count, steps)
    ahead = verdict(rows)
    show(rows, ahead)
    if given.output or (given.whole and not is_small):
        print("written to", report.write("distributed", rows, given.output, ahead=ahead))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("one", "export"):
        {"one": one, "export": export}[sys.argv[1]](*sys.argv[2:])
    else:
        main()
