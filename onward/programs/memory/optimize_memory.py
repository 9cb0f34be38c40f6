"""optimize_memory: rewrite a train graph so that its activations take less memory."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.formatting import show_bytes
from onward.graph.operators import PRODUCTS, RECURRENT, named
from onward.message_text import suggest_names
from onward.passes.drop_unused import drop_unused
from onward.programs.memory.engine_memory import EVERY_VALUE, EngineMemory
from onward.programs.memory.forward_backward import (
    ForwardBackward,
    can_repeat,
    divide_train_graph,
    hoist_shapes,
    storages,
)
from onward.programs.memory.memory_options import EVERYTHING, Memory
from onward.programs.memory.recompute_budget import BudgetSearch, RecomputeChoice
from onward.programs.memory.repeat_nodes import repeat_nodes
from onward.programs.memory.saved_values import SavedValueSearch
from onward.programs.memory.stash_values import stash_values
from onward.programs.memory.train_sizes import TrainSizes, measure_train_graph

_HEAVY = PRODUCTS | RECURRENT | named("Attention FusedMatMul MultiHeadAttention")
# Backward calls whose bodies compute what a forward call computes, too.
_REPEATING_CALLS = named("AttentionGrad")


def optimize_memory(
    train: ir.Model,
    outputs: Sequence[str],
    gradients: Collection[str],
    memory: Memory,
    engine: EngineMemory = EVERY_VALUE,
) -> ir.Model:
    """Apply a Memory to a train graph, in place.

    `outputs` are those of the forward pass; `gradients`, those of parameters, are not activations.
    """
    drop_unused(train)  # unused nodes would count as readers of the backward pass
    sizes = measure_train_graph(train, memory.sizes, engine)
    hoist_shapes(train.graph, divide_train_graph(train.graph, outputs))
    parts = divide_train_graph(train.graph, outputs, engine.fixed)
    chosen = choose_saved(parts, sizes, gradients, memory)
    if chosen is not None:
        calls = [n for n in parts.backward if n.op_type in _REPEATING_CALLS and n.domain]
        repeat_nodes(train, parts, chosen.saved, calls)
    if memory.offload or memory.stash is not None:
        parts = divide_train_graph(train.graph, outputs, engine.fixed)
        is_quantized = memory.stash is not None
        stash_values(train, parts, sizes, offload=memory.offload, eight_bits=is_quantized)
    return train


def choose_saved(
    parts: ForwardBackward, sizes: TrainSizes, gradients: Collection[str], memory: Memory
) -> RecomputeChoice | None:
    """What to save for the backward pass; None: everything that it reads."""
    planned = _planned(parts, memory.plan)
    level = memory.highest_level

    def may_repeat(node: ir.Node) -> bool:
        if not can_repeat(node):
            return False
        if level == EVERYTHING or any(value in planned for value in node.outputs):
            return True
        return level == 1 and node.op_type not in _HEAVY

    search = SavedValueSearch(parts, sizes, may_repeat, storages(planned))
    found = BudgetSearch(search, gradients)
    if level == 0:
        return found.evaluate(search.cheapest(0.0)) if planned else None
    if memory.budget is None:
        return found.least_memory()
    if not memory.is_share:
        sizes.check_told("a memory budget in bytes")
    unlimited = found.nothing_repeated().peak
    budget = memory.budget_bytes(unlimited)
    assert budget is not None
    chosen = found.fit(budget)
    if chosen is None:
        least = found.least_memory().peak
        raise OptionError(
            f"a memory budget of {show_bytes(budget)} is too small: activations take "
            f"{show_bytes(unlimited)}, and at least {show_bytes(least)} if everything that can be "
            f"is computed again\nraise it, train with smaller batches, or set offload or stash"
        )
    return chosen


def _planned(parts: ForwardBackward, patterns: Sequence[str]) -> set[ir.Value]:
    """The forward values that a user's plan names."""
    by_name = {str(value.name): value for value in parts.place if value.name}
    found: set[ir.Value] = set()
    for pattern in patterns:
        names = [pattern] if pattern in by_name else fnmatch.filter(by_name, pattern)
        if not names:
            hint = suggest_names(pattern, by_name)
            raise OptionError(f"Memory.plan: the forward pass has no value {pattern!r}\n{hint}")
        for name in names:
            node = by_name[name].producer()
            if node is not None and can_repeat(node):
                found.add(by_name[name])
            elif name == pattern:
                raise OptionError(
                    f"Memory.plan: {name!r} cannot be computed again: its node is random or has "
                    "subgraphs\nname another value"
                )
    return found
