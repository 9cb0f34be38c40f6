"""Each kernel of a training step on stock onnxruntime: inside of the step, and by itself.

    python benchmarks/step_kernels.py                     # every model, and a file of results
    python benchmarks/step_kernels.py mlp32 tf8 --pin 0,1 --output kernels.json

The program is the one that training.py measures, in the form for this processor, on 2 threads. The
step runs with onnxruntime's own trace; then each node, as onnxruntime has optimised it, runs as a
model of its own, with the same shapes, again and again: its inputs are in a cache, the threads are
awake. The sum of the latter is a bound: the step cannot be faster with these kernels and this
graph, however they are scheduled. Nodes of an If's branch count, the If itself does not.
Medians; each model in a process of its own.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import racing
import report
import training

MODELS = training.MODELS
STEPS, WARM_UP = 40, 10
SECONDS = 0.15  # for each node by itself
DTYPES = {"float": "float32", "double": "float64", "int64": "int64", "int32": "int32"}
DTYPES |= {"bool": "bool", "float16": "float16", "uint8": "uint8"}
OPSETS = {"": 23, "com.microsoft": 1, "com.microsoft.nchwc": 1}
CONTROL = ("If", "Loop", "Scan")


def trace(folder: Path) -> tuple[list[dict[str, Any]], onnx.ModelProto, float]:
    """The events of nodes in some steps, the optimised graph, and a step's milliseconds."""
    from onward.providers.options import SessionOptions
    from onward.sessions.training.session import TrainingSession

    options = SessionOptions(intra_op_num_threads=2, log_severity_level=3)
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "trace")
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    session = TrainingSession(folder / "ours", sess_options=options)
    feeds, times = dict(np.load(folder / "feeds.npz")), []
    for _ in range(WARM_UP + STEPS):
        began = time.perf_counter()
        session.step(feeds)
        times.append(1e3 * (time.perf_counter() - began))
    del session  # onnxruntime writes its trace
    gc.collect()
    written = max(folder.glob("trace*.json"), key=lambda path: path.stat().st_size)
    events = [each for each in json.loads(written.read_text()) if each.get("cat") == "Node"]
    graph = onnx.load(folder / "optimised.onnx")
    return events, graph, statistics.median(times[WARM_UP:])


def all_nodes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, dict[str, Any]]]:
    """The nodes of a graph and of its branches, with the constants that their names may mean."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        yield node, constants
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for inner, own in all_nodes(attribute.g):
                    yield inner, {**constants, **own}


def alone_ms(
    node: onnx.NodeProto, shapes: list[dict[str, list[int]]], constants: dict[str, Any]
) -> float | None:
    """The milliseconds of a model of this node only; None if it cannot be one."""
    given, kept, random = {}, [], np.random.default_rng(0)
    for name, described in zip(filter(None, node.input), shapes, strict=True):
        ((kind, shape),) = described.items()
        if name in constants:
            kept.append(constants[name])
        elif kind not in DTYPES:
            return None
        elif name not in given:
            dtype = np.dtype(DTYPES[kind])
            is_real = dtype.kind == "f"
            given[name] = random.random(shape).astype(dtype) if is_real else np.zeros(shape, dtype)
    named = onnx.helper.make_tensor_value_info
    kind_of = onnx.helper.np_dtype_to_tensor_dtype
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [named(name, kind_of(array.dtype), array.shape) for name, array in given.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        kept,
    )
    opsets = [onnx.helper.make_opsetid(*each) for each in OPSETS.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        results = session.run(None, given)
    except Exception:  # such as an index that zeros are not: the node counts as unknown
        return None
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    for value, array in zip(session.get_outputs(), results, strict=True):
        memory = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_output(value.name, memory)
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 20 or time.perf_counter() - started < SECONDS:
        began = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def one(name: str, folder: str) -> None:
    """In a child process: print what the kernels of a step cost."""
    events, optimised, step = trace(Path(folder))
    nodes = {node.name: (node, constants) for node, constants in all_nodes(optimised.graph)}
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["name"].endswith("_kernel_time") and event["args"]["op_name"] not in CONTROL:
            runs[event["name"].removesuffix("_kernel_time")].append(event)
    kinds: dict[str, dict[str, Any]] = {}
    known: dict[bytes, float | None] = {}
    for label, found in runs.items():
        found = found[-STEPS * (len(found) // (WARM_UP + STEPS)) :]
        shapes, each = found[-1]["args"]["input_type_shape"], len(found) / STEPS
        inside = each * statistics.median(event["dur"] for event in found) / 1e3
        op_type = found[-1]["args"]["op_name"]
        row = kinds.setdefault(op_type, {"op": op_type, "nodes": 0, "inside_ms": 0.0})
        row["nodes"] += 1
        row["inside_ms"] += inside
        by_itself = None
        if label in nodes:
            node, constants = nodes[label]
            held = [constants[each].SerializeToString() for each in node.input if each in constants]
            key = b"".join([onnx.NodeProto(op_type=node.op_type, attribute=node.attribute)
                            .SerializeToString(), json.dumps(shapes).encode(), *held])  # fmt: skip
            if key not in known:
                known[key] = alone_ms(node, shapes, constants)
            by_itself = known[key]
        if by_itself is None:
            row["unknown"] = row.get("unknown", 0) + 1
            by_itself = inside / each  # no better bound is known
        row["alone_ms"] = row.get("alone_ms", 0.0) + each * min(by_itself, inside / each)
    rows = sorted(kinds.values(), key=lambda row: -row["inside_ms"])
    sums = {key: sum(row[key] for row in rows) for key in ("inside_ms", "alone_ms")}
    unknown = sum(row.get("unknown", 0) for row in rows)
    found = {"model": name, "traced_step_ms": step, **sums, "unknown": unknown, "kinds": rows}
    print(json.dumps(found), flush=True)


def show(found: list[dict[str, Any]], most: int = 12) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for model in found:
        title = f"{model['model']}: a step with its trace takes {model['traced_step_ms']:.2f} ms"
        table = Table("kernel", "nodes", "in the step", "by itself", title=title)
        for row in [*model["kinds"][:most], {"op": "all", "nodes": "", **model}]:
            numbers = (f"{row['inside_ms']:.3f}", f"{row['alone_ms']:.3f}")
            table.add_row(row["op"], str(row["nodes"]), *numbers)
        console.print(table)


def main() -> None:
    given = racing.arguments(__doc__ or "", MODELS, ("ours",))
    found = []
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            racing.tell(f"{name}: compiled, then traced")
            script = str(Path(training.__file__).resolve())
            for words in (
                [script, "prepare", name, folder, "ours"],
                [__file__, "one", name, folder],
            ):
                made = subprocess.run([sys.executable, *words], capture_output=True, text=True)
                if made.returncode:
                    raise SystemExit(made.stderr)
            found.append(json.loads(made.stdout.strip().splitlines()[-1]))
    show(found)
    if given.output or given.whole:
        print("written to", report.write("step_kernels", found, given.output))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        main()
