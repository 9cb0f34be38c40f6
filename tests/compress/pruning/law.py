"""The law of pruning: a model without units gives what it gives with these units masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.removal import mask_model, remove_units
from onward.compress.pruning.units import UnitGroup, find_groups, prepare
from onward.graph.builder import NodeBuilder
from onward.graph.random_feeds import random_feeds
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]


class Net(NodeBuilder):
    """Builds small models with random weights."""

    def __init__(self, seed: int = 0, opset: int = 21) -> None:
        graph = ir.Graph((), (), nodes=(), opset_imports={"": opset}, name="net")
        super().__init__(graph, set(), graph.opset_imports)
        self.random = np.random.default_rng(seed)

    def constant(self, array: Array) -> ir.Value:
        return self.initializer(self.name("constant"), array)

    def weight(self, *shape: int) -> ir.Value:
        array = self.random.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.initializer(self.name("w"), array.astype(np.float32))

    def finish(self, *outputs: ir.Value) -> ir.Model:
        return self.model(**{f"y{place}": y for place, y in enumerate(outputs)})


def prune_half(
    model: ir.Model, seed: int = 0
) -> tuple[ir.Model, list[UnitGroup], dict[str, list[int]]]:
    """The prepared model, its groups and a random half of the units of each."""
    ready = prepare(model)
    groups, random = find_groups(ready), np.random.default_rng(seed)
    removal = {
        group.name: sorted(random.choice(group.count, group.count // 2, replace=False).tolist())
        for group in groups
    }
    return ready, groups, removal


def check_law(
    model: ir.Model,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    removal: Mapping[str, Sequence[int]] | None = None,
) -> list[UnitGroup]:
    """Check that the pruned model equals the masked one, and that it is smaller if it can be."""
    ready, groups, random = prune_half(model, seed)
    chosen = random if removal is None else removal
    pruned, masked = remove_units(ready, chosen), mask_model(ready, chosen)
    session = InferenceSession(masked)
    dynamic_sizes = {str(dim) for value in session.get_inputs() for dim in value.shape}
    known = {name: size for name, size in (sizes or {}).items() if name in dynamic_sizes}
    feeds = random_feeds(session.get_inputs(), known, seed)
    for y, expected in zip(
        InferenceSession(pruned).run(None, feeds), session.run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    if groups:
        assert count_weights(pruned) < count_weights(ready)
    return groups


def count_weights(model: ir.Model) -> int:
    """The number of elements of all float weights."""
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values()]
    return sum(t.size for t in tensors if t is not None and t.dtype.is_floating_point())
