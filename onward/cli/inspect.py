"""onward inspect: what a model takes, gives and is made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import onnx_ir as ir
import typer
from rich.console import Console
from rich.table import Table

from onward.graph.files import load, weight_bytes


def inspect(model: Annotated[Path, typer.Argument(help="An .onnx file, of any size.")]) -> None:
    """Show a model's inputs, outputs, opsets, operators and weights. Weights are not read."""
    console = Console()
    loaded = load(model)
    values = Table("", "name", "type", "shape", title=str(model))
    for role, group in (("input", loaded.graph.inputs), ("output", loaded.graph.outputs)):
        for value in group:
            dtype = value.dtype.name if value.dtype is not None else str(value.type)
            values.add_row(role, value.name, dtype, _shape(value))
    console.print(values)
    counts = Counter(
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        for graph in loaded.graphs()
        for node in graph
    )
    operators = Table("operator", "nodes", title=f"{sum(counts.values()):,} nodes")
    for name, count in counts.most_common():
        operators.add_row(name, f"{count:,}")
    console.print(operators)
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in loaded.opset_imports.items())
    tensors = [
        v.const_value for v in loaded.graph.initializers.values() if v.const_value is not None
    ]
    elements = sum(tensor.size for tensor in tensors)
    console.print(
        f"opsets: {opsets}; IR {loaded.ir_version}; made by {loaded.producer_name or '?'}"
    )
    console.print(
        f"weights: {len(tensors):,} tensors, {elements:,} elements, "
        f"{weight_bytes(loaded) / 2**20:,.1f} MiB"
    )


def _shape(value: ir.Value) -> str:
    if value.shape is None:
        return "?"
    return f"({', '.join(str(d if isinstance(d, int) else d.value or '?') for d in value.shape)})"
