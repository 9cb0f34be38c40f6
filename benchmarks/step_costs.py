"""What a training step of a saved program costs: nodes, FLOPs, passes over memory, what bounds it.

    python benchmarks/step_costs.py FOLDER    # that compile_training(...).save(FOLDER) wrote

Counted in the graph that was lowered for onnxruntime on any processor, the update included;
onnxruntime fuses a little more when it opens the graph.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.graph.costs.node_costs import Cost, declared, fix_inputs, is_view, node_cost
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.subgraph_sizes import scan_length
from onward.graph.shapes.value_dependent import infer_computed_shapes
from onward.measure.profile.bottlenecks import find_bound
from onward.measure.profile.roofline import Ceilings, find_ceilings

FIRST_CACHE = 32 << 10  # bytes: what fits does not leave a core's first cache
LOW_INTENSITY = 2  # FLOPs for each byte: a product with a vector has 0.5, a softmax 0.6


def machine_ceilings() -> Ceilings:
    """The most FLOP/s and bytes/s that onnxruntime reaches on 2 threads, measured now."""
    return find_ceilings("CPUExecutionProvider", {}, 2, fresh=True)


def step_costs(folder: Path, limits: Ceilings) -> dict[str, Any]:
    """The counts of a step, and the milliseconds that its nodes take at the machine's ceilings.

    A pass is a node that moves more than FIRST_CACHE with fewer than LOW_INTENSITY FLOPs for each
    byte. A node's least time is that of its FLOPs (`compute`), its bytes (`memory`) or its dispatch
    (`waiting`), whichever is longest; bytes at the rate of main memory, though caches are faster.
    """
    sizes = update_sizes(json.loads((folder / "program.json").read_text()))
    nodes = [node for graph in step_graphs(folder) for node in counted_nodes(graph, sizes)]
    costs = [node_cost(node) for node in nodes]
    passes = [cost.bytes for cost in costs if is_pass(cost)]
    least = {"compute": 0.0, "memory": 0.0, "waiting": 0.0}
    for cost in costs:
        bound, seconds = find_bound(cost.flops, cost.bytes, 1, limits)
        least[bound] += seconds * 1e3
    return {
        "nodes": len(nodes),
        "passes": len(passes),
        "passes_mb": sum(passes) / 1e6,
        "gflop": sum(cost.flops for cost in costs) / 1e9,
        "unknown_nodes": sum(cost.basis == "unknown" for cost in costs),
        "least_ms": least,
        "bound": max(least, key=lambda bound: least[bound]),
    }


def is_pass(cost: Cost) -> bool:
    """Whether a node does little more than move data through memory."""
    return cost.bytes > FIRST_CACHE and cost.flops < LOW_INTENSITY * cost.bytes


def step_graphs(folder: Path) -> list[Path]:
    """The graphs that run in a step: one, or the gradients and each update."""
    fused = folder / "step.onnx"
    updates = sorted(folder.glob("update_*_bound.onnx"))
    return [fused] if fused.exists() else [folder / "train.onnx", *updates]


def update_sizes(program: dict[str, Any]) -> dict[str, int]:
    """The lengths of the vectors that hold the parameters of each update."""
    elements = {each["name"]: math.prod(each["shape"]) for each in program["parameters"]}
    lengths = [sum(elements[n] for n in each["parameters"]) for each in program["updates"]]
    in_one = {f"update_{i}/n": length for i, length in enumerate(lengths)}
    return in_one | ({"n": lengths[0]} if len(lengths) == 1 else {})


def counted_nodes(path: Path, sizes: dict[str, int]) -> list[ir.Node]:
    """The nodes that run in a step, with their shapes; without views, which take no time."""
    model = ir.load(path)
    fix_inputs(model, sizes)
    infer_computed_shapes(infer_from_inputs(model, numbers=True))
    return [node for node in running_nodes(model.graph) if not is_view(node)]


def running_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every run of a node: of an If, the branch that updates; of a Scan, each of its steps."""
    for node in graph:
        if node.op_type == "If":
            yield from running_nodes(node.attributes["then_branch"].as_graph())
        elif node.op_type == "Scan":
            for _ in range(scan_length(node, lambda value: declared(value).shape) or 1):
                yield from running_nodes(node.attributes["body"].as_graph())
        else:
            yield node


if __name__ == "__main__":
    print(json.dumps(step_costs(Path(sys.argv[1]), machine_ceilings()), indent=2))
