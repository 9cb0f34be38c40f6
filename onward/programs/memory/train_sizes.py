"""TrainSizes: the bytes of a train graph's values and the work of its nodes, for given sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onward.errors import OptionError
from onward.graph.costs.flops import UnknownShape
from onward.graph.costs.node_costs import Cost, declared, fix_inputs, node_cost
from onward.graph.random_feeds import check_sizes, names_of_size
from onward.graph.scopes import COMPOSITES
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.value_dependent import infer_computed_shapes
from onward.message_text import list_names
from onward.passes.drop_unused import drop_unused
from onward.passes.memory_functions import BLOCK, QUANTIZE
from onward.programs.memory.engine_memory import EVERY_VALUE, EngineMemory

COPY_OF = "onward.copy_of"  # metadata of a copy: the first output of its original
ASSUMED = 64  # a dynamic dimension without a size
_PROBE = 61  # the same while it is found out which of them others determine
_CALL = "onward.memory.call"  # metadata: the first output of the call that a node belongs to
_FLOPS_PER_BYTE = 16  # arithmetic that takes as long as moving one byte, on a CPU or a GPU


@dataclass(frozen=True)
class TrainSizes:
    """Bytes and work of a train graph, its dynamic dimensions fixed."""

    nbytes: dict[str, int] = field(repr=False)  # of each value, by name
    costs: dict[str, Cost] = field(repr=False)  # of each node, by its first output's name
    sizes: dict[str, int]  # of dynamic dimensions
    assumed: tuple[str, ...]  # those of them that were not given
    unknown: tuple[str, ...]  # values whose size only a run shows

    def bytes_of(self, value: ir.Value) -> int:
        """The bytes of a value; 0 if its size is unknown."""
        return self.nbytes.get(str(value.name), 0)

    def cost_of(self, node: ir.Node) -> Cost:
        """The work of a node."""
        return self.costs.get(node_key(node), Cost())

    def time_of(self, node: ir.Node) -> float:
        """The time of a node, in bytes that memory could move in that time."""
        cost = self.cost_of(node)
        return cost.flops / _FLOPS_PER_BYTE + cost.bytes

    def check_told(self, wanted: str) -> None:
        """Refuse if a size was assumed where `wanted` needs the real one."""
        if self.assumed:
            example = f"sizes={{{self.assumed[0]!r}: 32}}"
            raise OptionError(
                f"{wanted} needs the sizes of dynamic dimensions: {list_names(self.assumed)}\n"
                f"give them, such as {example}"
            )


def node_key(node: ir.Node) -> str:
    """The name by which a node is found in another copy of its graph."""
    return next((str(value.name) for value in node.outputs if value.name), "")


def measure_train_graph(
    train: ir.Model, sizes: Mapping[str, int], engine: EngineMemory = EVERY_VALUE
) -> TrainSizes:
    """Infer the sizes of a train graph, which is not changed.

    `sizes` are those of dynamic dimensions, by name ("batch") or by input and place ("tokens:1").
    `engine` says which values take less memory than their size.
    """
    known, assumed = _dynamic_sizes(train, sizes)
    if assumed:  # such as labels with a row for each token: batch * time
        probe = _with_sizes(train, _dynamic_sizes(train, sizes, _PROBE)[0])
        known, assumed = _dynamic_sizes(train, {**sizes, **_inferred_sizes(train, probe, assumed)})
    model = _with_sizes(train, known)
    nbytes: dict[str, int] = {}
    unsized: list[str] = []
    graph = model.graph
    for value in (*graph.inputs, *(v for node in graph for v in node.outputs if v.name)):
        try:
            nbytes[str(value.name)] = declared(value).nbytes
        except UnknownShape:
            unsized.append(str(value.name))
    _add_stashed(train.graph, nbytes)
    _bound(train.graph, nbytes, engine.most_bytes)
    outer = {str(v.name) for node in train.graph for v in node.outputs} - nbytes.keys()
    unknown = [name for name in unsized if name in outer]
    costs: dict[str, Cost] = {}
    for node in graph:
        key = node.metadata_props.get(_CALL) or node_key(node)
        costs[key] = costs.get(key, Cost()) + node_cost(node)
    return TrainSizes(nbytes, costs, known, assumed, tuple(unknown))


def sizes_of_feeds(inputs: Sequence[ir.Value], given: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of dynamic dimensions, from feeds or from sizes."""
    known = {str(value.name): value for value in inputs}
    found: dict[str, int] = {}
    for name, value in given.items():
        if isinstance(value, (int, np.integer)):
            found[name] = int(value)
            continue
        shape = known[name].shape if name in known else ()
        for place, (dim, size) in enumerate(zip(shape or (), np.shape(value))):
            if isinstance(dim, ir.SymbolicDim):
                found.update(dict.fromkeys(names_of_size(name, place, dim.value), int(size)))
    return found


def _add_stashed(graph: ir.Graph, nbytes: dict[str, int]) -> None:
    """Add the bytes of 8-bit values, whose number of blocks is computed when they run."""
    for node in graph:
        value = node.inputs[0] if node.op_type == QUANTIZE and node.domain == COMPOSITES else None
        if value is None or value.dtype is None or str(value.name) not in nbytes:
            continue
        itemsize = value.dtype.itemsize
        blocks = math.ceil(nbytes[str(value.name)] / itemsize / BLOCK)
        sizes = (blocks * BLOCK, int(blocks * itemsize))
        nbytes.update({str(v.name): size for v, size in zip(node.outputs, sizes)})


def _bound(graph: ir.Graph, nbytes: dict[str, int], most: Mapping[str, int]) -> None:
    """Lower the bytes of values, and of their copies, to those that an engine keeps."""
    for node in graph if most else ():
        original = node.metadata_props.get(COPY_OF)
        for i, value in enumerate(node.outputs):
            names = [str(value.name), *([original] if original and not i else [])]
            limit = min((most[name] for name in names if name in most), default=None)
            if limit is not None and names[0] in nbytes:
                nbytes[names[0]] = min(nbytes[names[0]], limit)


def _with_sizes(train: ir.Model, sizes: Mapping[str, int]) -> ir.Model:
    """A copy of a train graph with these sizes of dynamic dimensions, its calls inlined."""
    model = drop_unused(train.clone())
    _mark_calls(model)
    InlinePass()(model)
    fix_inputs(model, sizes)
    return infer_computed_shapes(infer_from_inputs(model, numbers=True))


def _inferred_sizes(train: ir.Model, sized: ir.Model, assumed: Sequence[str]) -> dict[str, int]:
    """The sizes of assumed dimensions that the forward pass computes from others."""
    made = {str(v.name): v for node in sized.graph for v in node.outputs if v.name}
    found: dict[str, int] = {}
    for node in train.graph:
        for value in node.outputs:
            known = made.get(str(value.name))
            pairs = zip(value.shape or (), known.shape or () if known is not None else ())
            for dim, size in pairs:
                name = dim.value if isinstance(dim, ir.SymbolicDim) else None
                if name in assumed and isinstance(size, int) and name not in found:
                    found[str(name)] = size
    return {name: size for name, size in found.items() if size != _PROBE}


def _mark_calls(model: ir.Model) -> None:
    """Give every call its own function, whose nodes name the call."""
    for node in model.graph:
        key = node.op_identifier()
        if key not in model.functions:
            continue
        function = model.functions[key].clone()
        overload = f"{node.overload}.{node_key(node)}"
        own = ir.Function(
            function.domain,
            function.name,
            overload,
            graph=function.graph,
            attributes=list(function.attributes.values()),
        )
        for inner in own.graph:
            inner.metadata_props[_CALL] = node_key(node)
        node.overload = overload
        model.functions[own.identifier()] = own


def _dynamic_sizes(
    train: ir.Model, given: Mapping[str, int], default: int = ASSUMED
) -> tuple[dict[str, int], tuple[str, ...]]:
    """A size for each dynamic dimension of the inputs, and the names of those that were assumed.

    A first dimension without a name is the batch of another input.
    """
    dims = [
        (place, names_of_size(str(value.name), place, dim.value))
        for value in train.graph.inputs
        for place, dim in enumerate(value.shape or ())
        if isinstance(dim, ir.SymbolicDim)
    ]
    check_sizes(given, {name for _, names in dims for name in names})
    found: dict[str, int] = {}
    assumed: dict[str, None] = {}
    firsts: list[int] = []
    for place, names in sorted(dims, key=lambda dim: len(dim[1]), reverse=True):
        key = next((name for name in names if name in given), None)
        size = None if key is None else given[key]
        if size is None and len(names) == 1 and place == 0 and firsts:
            size = firsts[0]
        if size is None:
            assumed[names[-1]] = None
            size = default
        if place == 0:
            firsts.append(size)
        found.update(dict.fromkeys(names, size))
    return found, tuple(assumed)
