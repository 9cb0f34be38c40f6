"""Shared sums: values of a train graph that are summed over processes while it runs.

    sums = cut_at_sums(train)                   # the train graph no longer has AllReduce
    pieces = split_at_sums(train, groups, sums)

Where the graph calls AllReduce, it is cut: what a process adds to the sum becomes an output, the
sum an input. No engine has to know about processes: it runs piece after piece, and where a piece
ends at a sum, its caller sums the output over the processes and feeds it to the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.gradients.split import GraphPiece, split
from onward.graph.scopes import ancestors, walk
from onward.passes.composites import is_call
from onward.passes.rewrite import Names
from onward.passes.shared_batch_norms import ALL_REDUCE
from onward.programs.program import SharedSum

NAME = "onward.sum"


class SumPiece(NamedTuple):
    """A piece of a train graph, and what is summed over processes after it."""

    piece: GraphPiece
    sum: SharedSum | None


def cut_at_sums(model: ir.Model) -> tuple[SharedSum, ...]:
    """Cut a graph at its calls of AllReduce, in place; the sums, in the order of the graph."""
    graph, names, found = model.graph, Names(model), []
    for call in [node for node in graph if _is_all_reduce(node)]:
        part, total = call.inputs[0], call.outputs[0]
        assert part is not None and part.shape is not None and part.dtype is not None
        fed = ir.val(names.fresh(f"{NAME}.total"), type=part.type, shape=part.shape)
        graph.inputs.append(fed)
        total.replace_all_uses_with(fed)
        graph.remove(call, safe=True)
        model.functions.pop(call.op_identifier(), None)
        graph.outputs.append(part)
        if part.name is None or not part.name.startswith(NAME):
            part.name = names.fresh(NAME)
        size = prod(part.shape.numpy())
        found.append(
            SharedSum(
                part=str(part.name), total=str(fed.name), size=size, dtype=part.dtype.numpy().name
            )
        )
    if any(_is_all_reduce(node) for node in walk(graph)):
        raise UnsupportedModel("a branch or a loop cannot wait for a sum over processes")
    return tuple(found)


def split_at_sums(
    model: ir.Model, groups: Sequence[Sequence[str]], sums: Sequence[SharedSum]
) -> list[list[SumPiece]]:
    """For each group, the pieces that compute it; all but the last of them end at a sum.

    A sum is computed in the first group that needs it.
    """
    order = list(_order(model.graph, groups, sums))
    pieces = split(model, [names for _, names, _ in order])
    found: list[list[SumPiece]] = [[] for _ in groups]
    for (group, _, shared), piece in zip(order, pieces):
        found[group].append(SumPiece(piece, shared))
    return found


def _order(
    graph: ir.Graph, groups: Sequence[Sequence[str]], sums: Sequence[SharedSum]
) -> Iterator[tuple[int, Sequence[str], SharedSum | None]]:
    """The results of each piece, in the order in which they run, with the number of the group."""
    values = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values()) if v.name}
    values |= {str(v.name): v for node in graph for v in node.outputs if v.name}
    done: set[str] = set()
    for i, names in enumerate(groups):
        needed = [values[name] for name in names if name in values]
        before = []
        for shared in reversed(sums):  # a sum reads only sums before it
            if values[shared.total] in ancestors(graph, needed):
                needed.append(values[shared.part])
                before.append(shared)
        for shared in reversed(before):
            if shared.part not in done:
                done.add(shared.part)
                yield i, [shared.part], shared
        yield i, names, None


def _is_all_reduce(node: ir.Node) -> bool:
    return is_call(node) and node.op_type == ALL_REDUCE
