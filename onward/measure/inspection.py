"""A report on a model by its graph: what it consists of, and what a run costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.graph.costs.node_costs import Costs, model_costs, operator
from onward.graph.random_feeds import input_shapes
from onward.graph.summary import file_bytes, summarize
from onward.measure.memory.budget import VIEWS, estimate_memory
from onward.passes.pipelines import PREPARE
from onward.sessions.model_description import describe, metadata


def model_facts(model: ir.Model, path: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What a model consists of, and what one run costs; dynamic dimensions are 1, or as given.

    Plain values: names, numbers, lists and dicts. What cannot be found out is None, and the
    report's `warnings` say why.
    """
    summary, about = summarize(model), metadata(model)
    graph = model.graph
    report: dict[str, Any] = {
        "file": str(path),
        "bytes": file_bytes(path, summary),
        "graph": about.graph_name,
        "version": about.version,
        "description": about.description or about.graph_description,
        "inputs": [_value(value) for value in graph.inputs],
        "outputs": [_value(value) for value in graph.outputs],
        **asdict(summary),
        "cost": None,
        "memory": None,
        "providers": None,
        "warnings": [],
    }
    costs = _costs(model, sizes, report["warnings"])
    if costs is not None:
        report["cost"] = _cost_facts(costs)
        report["memory"] = _memory(model, costs, report["warnings"])
    report["node_list"] = _node_list(model, costs)
    return report


def _value(value: ir.Value) -> dict[str, Any]:
    arg = describe(value)
    shape = None if value.shape is None else list(arg.shape)
    default = value.is_graph_input() and value.is_initializer()
    return {"name": arg.name, "type": arg.type, "shape": shape, "has_default": default}


def _costs(model: ir.Model, sizes: Mapping[str, int], warnings: list[str]) -> Costs | None:
    try:
        return model_costs(model, sizes)
    except Exception as error:  # a broken model shows itself in many ways
        warnings.append(f"the cost is not known: {_first_line(error)}")
        return None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _memory(model: ir.Model, costs: Costs, warnings: list[str]) -> dict[str, int] | None:
    """The peak memory of a run, only from the graph, without any engine."""
    args = [describe(value) for value in model.graph.inputs]
    try:
        shapes = input_shapes([(arg.name, arg.type, arg.shape) for arg in args], costs.sizes)
        values = estimate_memory(PREPARE(model.clone()), shapes, VIEWS)
    except Exception as error:  # a broken model shows itself in many ways
        warnings.append(f"the memory is not known: {_first_line(error)}")
        return None
    return {
        "weights": values.weights,
        "activations": values.lives.peak,
        "values_of_unknown_size": len(values.unknown),
    }


def _cost_facts(costs: Costs) -> dict[str, Any]:
    total = costs.total
    return {
        "sizes": costs.sizes,
        "parameters": costs.parameters,
        "flops": total.flops,
        "bytes_read": total.read,
        "bytes_written": total.written,
        "estimated_nodes": costs.count("estimate") + costs.count("once"),
        "loops_counted_once": costs.count("once"),
        "branches": sum(node.operator == "If" for node in costs.nodes),
        "unknown_nodes": costs.count("unknown"),
        "flops_by_operator": {name: cost.flops for name, cost in costs.operators.items()},
    }


def _node_list(model: ir.Model, costs: Costs | None) -> list[dict[str, Any]]:
    """Every node of the main graph, with its FLOPs where functions did not have to be inlined."""
    known = costs is not None and len(costs.nodes) == len(model.graph)
    flops = [node.cost.flops for node in costs.nodes] if known and costs else []
    return [
        {
            "name": node.name or "",
            "operator": operator(node),
            "inputs": [str(value.name) if value is not None else "" for value in node.inputs],
            "outputs": [str(value.name) for value in node.outputs],
            "flops": flops[place] if known else None,
        }
        for place, node in enumerate(model.graph)
    ]
