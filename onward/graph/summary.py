"""Count a model's nodes, operators, functions and weights, without reading a weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.graph.costs.node_costs import operator
from onward.graph.mapped import MappedTensor
from onward.graph.scopes import bodies

_LARGEST = 10


@dataclass(frozen=True)
class TensorFacts:
    """One weight: its type, shape, size and file."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    file: str | None = None  # the external file that holds it


@dataclass(frozen=True)
class Amount:
    """A number of tensors, elements and bytes."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0

    def __add__(self, tensor: Any) -> Amount:
        size, nbytes = int(tensor.size), int(tensor.nbytes)
        return Amount(self.tensors + 1, self.elements + size, self.bytes + nbytes)


@dataclass(frozen=True)
class FunctionFacts:
    """A function in the model."""

    name: str
    nodes: int
    calls: int


@dataclass(frozen=True)
class Summary:
    """The counts of a model."""

    ir_version: int
    opsets: dict[str, int]
    producer: str
    metadata: dict[str, str]
    nodes: int  # those of subgraphs included, those of functions not
    operators: dict[str, int]  # the most frequent first
    subgraphs: dict[str, int]  # by the operator that holds them
    functions: list[FunctionFacts]
    weights: Amount
    weights_by_type: dict[str, Amount]
    largest: list[TensorFacts]
    external_files: dict[str, int]  # bytes of each that the model refers to


def summarize(model: ir.Model) -> Summary:
    """Count a model's parts."""
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    tensors = list(_tensors(model, nodes))
    operators = Counter(map(operator, nodes))
    weights, by_type, files = Amount(), dict[str, Amount](), dict[str, int]()
    for _, tensor in tensors:
        weights += tensor
        kind = tensor.dtype.name.lower()
        by_type[kind] = by_type.get(kind, Amount()) + tensor
        if isinstance(tensor, (MappedTensor, ir.ExternalTensor)):
            name = str(tensor.location)
            files[name] = files.get(name, 0) + tensor.nbytes
    largest = sorted(tensors, key=lambda pair: -pair[1].nbytes)[:_LARGEST]
    return Summary(
        ir_version=model.ir_version or 0,
        opsets={domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        metadata=dict(model.metadata_props),
        nodes=len(nodes),
        operators=dict(operators.most_common()),
        subgraphs=dict(Counter(operator(node) for node in nodes for _ in bodies(node))),
        functions=[
            FunctionFacts(f"{f.domain}::{f.name}", len(f), operators[f"{f.domain}::{f.name}"])
            for f in model.functions.values()
        ],
        weights=weights,
        weights_by_type=dict(sorted(by_type.items(), key=lambda pair: -pair[1].bytes)),
        largest=[_facts(name, tensor) for name, tensor in largest],
        external_files=files,
    )


def _tensors(model: ir.Model, nodes: Iterable[ir.Node]) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Every weight: initializers, and the values of Constant nodes."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
    for node in nodes:
        attribute = node.attributes.get("value") if node.op_type == "Constant" else None
        if attribute is not None and attribute.type == ir.AttributeType.TENSOR:
            yield str(node.outputs[0].name), attribute.as_tensor()


def _facts(name: str, tensor: ir.TensorProtocol) -> TensorFacts:
    file = str(tensor.location) if isinstance(tensor, (MappedTensor, ir.ExternalTensor)) else None
    shape = [int(size) for size in tensor.shape.numpy()]
    return TensorFacts(name, tensor.dtype.name.lower(), shape, int(tensor.nbytes), file)


def file_bytes(path: Path, summary: Summary) -> int:
    """The bytes on disk of a model and of its external files."""
    external = (path.parent / name for name in summary.external_files)
    return path.stat().st_size + sum(file.stat().st_size for file in external)
