"""Remove whole layers: residual blocks, which are the identity plus something.

y = x + f(x) becomes y = x, for the blocks that change the outputs least.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.pruning.axes import known_sizes
from onward.compress.quality import Judge
from onward.errors import OptionError
from onward.graph.scopes import reads
from onward.passes.drop_unused import drop_unused


@dataclass(frozen=True)
class ResidualBlock:
    """A residual block: the Add that ends it, and which of its inputs is the identity."""

    name: str  # of the Add's result
    identity: int


def find_blocks(model: ir.Model) -> list[ResidualBlock]:
    """The residual blocks of the main graph, in its order; those around others are left out."""
    found = []
    before: dict[ir.Value, frozenset[ir.Value]] = {}  # a value and the Adds' inputs it depends on
    wanted = {value for node in model.graph if node.op_type == "Add" for value in node.inputs}
    for node in model.graph:
        inputs = reads(node)
        above = frozenset().union(*(before.get(v, frozenset()) for v in inputs))
        above |= frozenset(v for v in inputs if v in wanted and v.const_value is None)
        before.update(dict.fromkeys(node.outputs, above))
        if node.op_type != "Add" or len(inputs) != 2 or node.outputs[0].is_graph_output():
            continue
        for place in (0, 1):
            x, other = node.inputs[place], node.inputs[1 - place]
            if x is None or other is None or x not in before.get(other, ()):
                continue
            if known_sizes(x) == known_sizes(node.outputs[0]) and _has_weights(node, x):
                found.append(ResidualBlock(str(node.outputs[0].name), place))
                break
    return found


def _has_weights(add: ir.Node, x: ir.Value) -> bool:
    """Whether a block multiplies by a weight: a sum of two activations is not a layer."""
    waiting = [v for v in add.inputs if v is not None and v is not x]
    seen = {x}
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in seen or node is None:
            continue
        seen.add(value)
        inputs = [v for v in node.inputs if v is not None]
        if any(v.const_value is not None and len(known_sizes(v) or ()) > 1 for v in inputs):
            return True
        waiting += inputs
    return False


def skip_blocks(model: ir.Model, names: set[str]) -> ir.Model:
    """A copy of the model in which these blocks are the identity."""
    copy = model.clone()
    blocks = {block.name: block for block in find_blocks(copy) if block.name in names}
    for node in list(copy.graph):
        block = blocks.get(str(node.outputs[0].name))
        if block is None:
            continue
        y, x = node.outputs[0], node.inputs[block.identity]
        assert x is not None
        for use in list(y.uses()):
            use.node.replace_input_with(use.idx, x)
    return drop_unused(copy)


def remove_layers(
    model: ir.Model, count: int, judge: Judge, progress: Progress
) -> tuple[ir.Model, list[str]]:
    """The model without the blocks that its outputs need least, and their names."""
    blocks = find_blocks(model)
    if count < 1 or count > len(blocks):
        raise OptionError(
            f"layers must be from 1 to {len(blocks)}, the number of residual blocks, not {count}"
            if blocks
            else "the model has no residual blocks, so no layers can be removed\nleave out layers="
        )
    gone: set[str] = set()
    for number in range(count):
        scores: dict[str, float] = {}
        for place, block in enumerate(blocks):
            if block.name not in gone:
                progress(
                    f"try the model without a layer ({number + 1} of {count})", place, len(blocks)
                )
                rated = judge.rate(skip_blocks(model, {*gone, block.name}))
                scores[block.name] = rated.error
        gone.add(min(scores, key=lambda name: (scores[name], name)))
    return skip_blocks(model, gone), sorted(gone)
