"""cut_forward: cut a forward pass into segments that read the parameters of few buckets each.

Where parameters are gathered before they are read, and freed after it, a segment is what runs
between the two. A new segment begins at a node that reads a bucket which the current one does not
read yet, unless both fit the size of one bucket, or the last segment read it, too: where nodes read
two buckets in turns, both stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onward.graph.operators import is_random, is_random_contrib
from onward.graph.scopes import ancestors, bodies, reads
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names, copy_node


def cut_forward(
    model: ir.Model, results: Sequence[str], bucket_of: Mapping[str, int], sizes: Sequence[int]
) -> list[list[str]]:
    """The values that each segment of the forward pass to `results` computes, for `split`.

    `bucket_of` is the bucket of each parameter, `sizes` are the bytes of the buckets. What is
    computed only from parameters (a cast, a transpose) is computed again for each node that reads
    it, in place in the model: kept, it would be a copy of parameters that are to be freed.
    """
    graph = model.graph
    _copy_derived(model, {v for v in graph.inputs if str(v.name) in bucket_of})
    made = {str(value.name): value for node in graph for value in node.outputs}
    wanted = [made[name] for name in results if name in made]
    needed = ancestors(graph, wanted)
    nodes = [node for node in graph if any(value in needed for value in node.outputs)]
    segment_of = dict(zip(nodes, _assign(nodes, bucket_of, sizes)))
    groups: list[list[str]] = [[] for _ in range(1 + max(segment_of.values(), default=0))]
    crossing = {made[name] for name in results if name in made}
    for node in graph:
        for value in reads(node):
            maker = value.producer()
            if maker in segment_of and segment_of[maker] != segment_of.get(node):
                crossing.add(value)
    for node, segment in segment_of.items():
        groups[segment] += [str(value.name) for value in node.outputs if value in crossing]
    return groups


def _assign(
    nodes: Sequence[ir.Node], bucket_of: Mapping[str, int], sizes: Sequence[int]
) -> list[int]:
    """The segment of each node, in order."""
    limit = max(sizes, default=0)
    found, segment = [], 0
    last: set[int] = set()  # buckets of the last segment
    current: set[int] = set()
    for node in nodes:
        new = {bucket_of[str(v.name)] for v in reads(node) if str(v.name) in bucket_of} - current
        fits = sum(sizes[bucket] for bucket in current | new) <= limit
        if current and new and not fits and not new <= last:
            segment, last, current = segment + 1, current, set()
            new = {bucket_of[str(v.name)] for v in reads(node) if str(v.name) in bucket_of}
        current |= new
        found.append(segment)
    return found


def _copy_derived(model: ir.Model, parameters: Collection[ir.Value]) -> None:
    """Copy what is computed only from parameters for each node that reads it."""
    graph, names = model.graph, Names(model)
    derived: set[ir.Value] = set(parameters)
    fixed: set[ir.Value] = set(graph.initializers.values())
    for node in graph:
        read = reads(node)
        if bodies(node) or is_random(node) or is_random_contrib(node):
            continue
        if all(value in fixed for value in read):
            fixed.update(node.outputs)
        elif all(value in derived or value in fixed for value in read):
            derived.update(node.outputs)
    derived -= set(parameters)
    for node in list(graph):
        if bodies(node) or any(value in derived for value in node.outputs):
            continue
        copies: dict[ir.Value, ir.Value] = {}
        for index, value in enumerate(node.inputs):
            if value is not None and value in derived:
                node.replace_input_with(index, _copy(value, node, derived, copies, names))
    drop_unused(model)


def _copy(
    value: ir.Value,
    before: ir.Node,
    derived: Collection[ir.Value],
    copies: dict[ir.Value, ir.Value],
    names: Names,
) -> ir.Value:
    """A copy of a derived value, computed just before the node that reads it."""
    if value not in derived:
        return value
    if value not in copies:
        node = value.producer()
        assert node is not None and before.graph is not None
        inputs = [v if v is None else _copy(v, before, derived, copies, names) for v in node.inputs]
        copy = copy_node(node, inputs, names, "copy")
        copies.update(zip(node.outputs, copy.outputs))
        before.graph.insert_before(before, copy)
    return copies[value]
