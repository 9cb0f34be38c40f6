"""Layers of a model by their depth: learning rates that fall with it, and gradual unfreezing.

The depth of a parameter is the number of layers between it and the inputs, counted on the longest
path. A layer is a node that multiplies or looks up a parameter of two axes or more: the query, key
and value of an attention have the same depth; biases, position embeddings and the parameters of
normalizations have the depth of the layer before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import reads
from onward.optimizers.groups import Group
from onward.programs.select import initializers, matching, nothing_to_train
from onward.runner.finetune.weight_selection import known_weights
from onward.settings import above, integer, list_of, number

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")
_PATTERNS = list_of(str, "a list of names or patterns", "['encoder.*']")


def layers_by_depth(
    model: ir.Model, trainable: Sequence[str] | None = None, frozen: Sequence[str] = ()
) -> list[list[str]]:
    """The parameters that train with these TrainingOptions, those next to the inputs first.

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w1, w2 = (op.initializer(n, np.ones((4, 4), np.float32)) for n in ("w1", "w2"))
    >>> x = op.input("x", "float32", ("batch", 4))
    >>> layers_by_depth(op.model(y=op.MatMul(op.Relu(op.MatMul(x, w1)), w2)))
    [['w1'], ['w2']]
    """
    named = [*_PATTERNS("trainable", trainable or ()), *_PATTERNS("frozen", frozen)]
    known = known_weights(model, named, trainable or ())
    kept = set(matching(known.names, frozen, "frozen"))
    chosen = known.likely
    if trainable is not None:
        chosen = matching(known.names, trainable, "trainable")
    chosen = [name for name in chosen if name not in kept]
    if not chosen:
        raise nothing_to_train(known.names)
    values = {value for value in initializers(known.model) if value.name in chosen}
    depths = _depths(known.model.graph, values)
    layers: dict[int, list[str]] = {}
    for name in chosen:
        layers.setdefault(depths.get(name, 0), []).append(name)
    return [layers[depth] for depth in sorted(layers)]


def layerwise_rates(
    model: ir.Model,
    lr: float,
    decay: float,
    *,
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
) -> list[Group]:
    """Groups for TrainingOptions.groups: the last layer trains at `lr`, those before it slower.

        lr of a layer = lr decay ** (number of layers after it)

    Args:
        model: the model
        lr: the learning rate of the last layer, which is the optimizer's own
        decay: the factor from one layer to the one before it, above 0 and at most 1
        trainable: as in TrainingOptions
        frozen: as in TrainingOptions
    """
    lr, decay = above(0.0)("lr", lr), number(0.0, 1.0)("decay", above(0.0)("decay", decay))
    layers = layers_by_depth(model, trainable, frozen)
    last = len(layers) - 1
    return [
        Group(parameters=names, lr=lr * decay ** (last - depth))
        for depth, names in enumerate(layers)
    ]


@dataclass(frozen=True)
class UnfreezingStage:
    """The parameters that train from a step on, until the next stage."""

    step: int
    names: tuple[str, ...]


def unfreeze_schedule(
    model: ir.Model,
    groups: Sequence[Sequence[str]] | None = None,
    *,
    every: int,
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
) -> list[UnfreezingStage]:
    """The stages of gradual unfreezing: the last layers train first, others join every few steps.

    Args:
        model: the model
        groups: lists of names or patterns, in the order in which they begin to train; None: the
            layers, the last one first
        every: the number of steps from one stage to the next
        trainable: as in TrainingOptions
        frozen: as in TrainingOptions

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w1, w2 = (op.initializer(n, np.ones((4, 4), np.float32)) for n in ("w1", "w2"))
    >>> x = op.input("x", "float32", ("batch", 4))
    >>> for stage in unfreeze_schedule(op.model(y=op.MatMul(op.MatMul(x, w1), w2)), every=100):
    ...     print(stage.step, *stage.names)
    0 w2
    100 w2 w1
    """
    every = integer(1)("every", every)
    layers = layers_by_depth(model, trainable, frozen)
    joining: Iterable[Sequence[str]] = reversed(layers)
    if groups is not None:
        if isinstance(groups, str) or not groups:
            raise OptionError(
                f"groups must be a list of lists of patterns, not {groups!r}\n"
                "such as [['head.*'], ['encoder.*']]"
            )
        known = [name for names in layers for name in names]
        joining = [matching(known, _PATTERNS("groups", each), "groups") for each in groups]
    stages, names = list[UnfreezingStage](), dict[str, None]()
    for count, joined in enumerate(joining):
        names.update(dict.fromkeys(joined))
        stages.append(UnfreezingStage(count * every, tuple(names)))
    return stages


def _depths(graph: ir.Graph, parameters: set[ir.Value]) -> dict[str, int]:
    """The depth of each parameter: of its first use, for those that are used several times."""
    depth_of: dict[ir.Value, int] = {}
    sources: dict[ir.Value, set[ir.Value]] = {each: {each} for each in parameters}
    found: dict[str, int] = {}
    for node in graph:
        read = reads(node)
        own = set[ir.Value]().union(*(sources.get(value, set()) for value in read))
        data = [value for value in read if value in depth_of or not sources.get(value)]
        is_data = any(value in depth_of or value.is_graph_input() for value in read)
        if own and not is_data:  # a weight that is transposed, cast or computed from others
            sources.update(dict.fromkeys(node.outputs, own))
            continue
        before = max((depth_of.get(value, 0) for value in data), default=0)
        is_layer = node.op_type not in _ELEMENTWISE and any(_rank(each) > 1 for each in own)
        depth = before + 1 if is_layer else before
        for parameter in own:
            found.setdefault(str(parameter.name), depth)
        if is_data or own:
            depth_of.update(dict.fromkeys(node.outputs, depth))
    return found


def _rank(value: ir.Value) -> int:
    return 0 if value.const_value is None else len(value.const_value.shape)
