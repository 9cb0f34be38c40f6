"""split_updates: cut the updates of a program into buckets, in the order of its backward pass.

The parameters of one update lie in one vector, and so do their gradients. Where a vector is reduced
over processes, it should be complete early, and not too long: this pass makes several updates of
one, each of parameters whose gradients are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onward.passes.drop_unused import drop_unused
from onward.programs.bucket_parts import Sharding, part_of_update
from onward.programs.program import Program, UpdateLayout


@dataclass(frozen=True)
class Buckets:
    """A program whose updates are buckets, in the order in which their gradients are complete."""

    program: Program
    updates: tuple[int, ...]  # for each bucket, the update that it was cut from


def split_updates(program: Program, size: int) -> Buckets:
    """Cut each update into buckets of at most `size` bytes, or of one parameter."""
    layout = program.layout
    sizes = {p.name: p.size for p in layout.parameters}
    update_of = {name: i for i, u in enumerate(layout.updates) for name in u.parameters}
    closed: list[tuple[int, list[str]]] = []
    filling: dict[int, list[str]] = {}
    held: dict[int, int] = {}
    for name in gradient_order(program):
        update = update_of[name]
        bytes_ = sizes[name] * np.dtype(layout.updates[update].dtype).itemsize
        if filling.get(update) and held[update] + bytes_ > size:
            closed.append((update, filling.pop(update)))
            held[update] = 0
        filling.setdefault(update, []).append(name)
        held[update] = held.get(update, 0) + bytes_
    closed += filling.items()
    updates = tuple(part_of_update(layout.updates[i], names) for i, names in closed)
    graphs = tuple(
        program.updates[i]
        if layout.updates[i].flat or len(names) == len(layout.updates[i].parameters)
        else _part_of_graph(program.updates[i], layout.updates[i], names)
        for i, names in closed
    )
    cut = replace(program, layout=replace(layout, updates=updates), updates=graphs)
    return Buckets(cut, tuple(i for i, _ in closed))


def gradient_order(program: Program) -> list[str]:
    """The parameters in the order in which the train graph computes their gradients."""
    place = {id(node): i for i, node in enumerate(program.train.graph)}
    outputs = {str(value.name): value for value in program.train.graph.outputs}

    def position(gradient: str) -> int:
        node = outputs[gradient].producer()
        return -1 if node is None else place[id(node)]

    found = [(position(p.gradient), i, p.name) for i, p in enumerate(program.layout.parameters)]
    return [name for _, _, name in sorted(found)]


def program_of_process(program: Program, sharding: Sharding) -> Program:
    """The program of one process: its update graphs are those of the tensors that it owns.

    An update without tensors of its own keeps its graph, which is not run.
    """
    graphs = []
    for graph, parts in zip(program.updates, sharding.buckets):
        own = parts.own_update(sharding.rank).parameters
        is_whole = not own or len(own) == len(parts.update.parameters)
        graphs.append(graph if is_whole else _part_of_graph(graph, parts.update, own))
    return replace(program, updates=tuple(graphs))


def _part_of_graph(model: ir.Model, update: UpdateLayout, names: Collection[str]) -> ir.Model:
    """The update graph of some of the parameters, for updates of separate tensors."""
    kept = {f"{name}.new" for name in names}
    kept |= {f"{name}.{slot}.new" for slot in update.slots for name in names}
    part = model.clone()
    part.graph.outputs[:] = [value for value in part.graph.outputs if value.name in kept]
    drop_unused(part)
    scalars = ("learning_rate", "step", "gradient_scale")
    part.graph.inputs[:] = [
        value for value in part.graph.inputs if value.uses() or value.name in scalars
    ]
    return part
