"""Choose the weights that fine-tuning trains, by the names that a training session knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.passes.exporters.provenance import sources
from onward.passes.linear_models import write_linear_models
from onward.passes.pipelines import PREPARE
from onward.programs.select import (
    initializers,
    likely_parameters,
    matching,
    nothing_to_train,
    restore_parameters,
    weights,
)


@dataclass(frozen=True)
class KnownWeights:
    """A prepared copy of a model, and the names of its weights: torch's, where metadata has them.

    Attributes:
        model: the copy
        names: all float weights
        aliases: weights by the name of the torch parameter that each was computed from
        likely: those that train by default: parameters that the outputs depend on
    """

    model: ir.Model
    names: list[str]
    aliases: dict[str, str]
    likely: list[str]


def known_weights(
    model: ir.Model, named: Collection[str] = (), separate: Collection[str] = ()
) -> KnownWeights:
    """The weights of a model as a training session with these names in its options sees them.

    Args:
        model: the model, which does not change
        named: all names in the options: Constants of these names are weights
        separate: the names in `trainable`: tied copies of these names are separate
    """
    copy = model.clone()
    restore_parameters(copy, named, separate)
    copy = write_linear_models(copy)
    carried = set(initializers(copy))
    copy = PREPARE(copy)
    names = weights(copy, carried)
    aliases = {
        origin: str(value.name)
        for value in initializers(copy)
        for origin in sources(value)
        if value.name in names and len(sources(value)) == 1 and origin not in names
    }
    for value in initializers(copy):
        alias = module_name(value)
        if value.name in names and alias and alias not in names:
            aliases.setdefault(alias, str(value.name))
    likely = likely_parameters(copy, names, copy.graph.outputs)
    return KnownWeights(copy, names, aliases, likely)


def module_name(value: ir.Value) -> str:
    """The name in torch of a weight that torch's older exporter made, as it does with folded ones.

    Such a weight is called onnx::Conv_28, but the node that reads it after its module:
    /features/features.0/Conv, for features.0.weight. Empty for other weights.
    """
    node = next((user.node for user in value.uses()), None)
    if (
        node is None
        or not str(value.name).startswith("onnx::")
        or not str(node.name).startswith("/")
    ):
        return ""
    parts: list[str] = []
    for part in str(node.name).split("/")[1:-1]:
        if parts and part.startswith(f"{parts[-1]}."):  # a member of a list repeats its name
            parts.pop()
        parts.append(part)
    kind = "bias" if value in node.inputs[2:] or node.op_type == "Add" else "weight"
    return ".".join([*parts, kind]) if parts else ""


@dataclass(frozen=True)
class WeightSelection:
    """Names for TrainingOptions; `trainable` is None if all likely parameters are."""

    trainable: tuple[str, ...] | None
    frozen: tuple[str, ...]


def select_weights(
    model: ir.Model,
    train_only: Sequence[str] | None,
    freeze: Sequence[str],
    new: Collection[str] = (),
) -> WeightSelection:
    """Resolve names and patterns; weights of a `new` head are trained whatever the patterns match.

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w1, w2 = (op.initializer(n, np.ones((4, 4), np.float32)) for n in ("fc.w", "head.w"))
    >>> x = op.input("x", "float32", ("batch", 4))
    >>> model = op.model(y=op.MatMul(op.MatMul(x, w1), w2))
    >>> select_weights(model, None, ["*"], new=["head.w"])
    WeightSelection(trainable=None, frozen=('fc.w',))
    """
    known = known_weights(model, {*(train_only or ()), *freeze}, train_only or ())
    frozen = _matching_old(known, freeze, "freeze", new)
    if train_only is None:
        trained = [name for name in known.likely if name not in frozen]
    else:
        chosen = [*_matching_old(known, train_only, "train_only", new), *new]
        trained = [name for name in dict.fromkeys(chosen) if name not in frozen]
    if not trained:
        raise nothing_to_train(known.names)
    return WeightSelection(None if train_only is None else tuple(trained), tuple(frozen))


def _matching_old(
    known: KnownWeights, patterns: Sequence[str], field: str, new: Collection[str]
) -> list[str]:
    """The weights that match, without the new head's; each pattern must match one."""
    old = [name for name in (*known.names, *known.aliases) if name not in new]
    for pattern in patterns:
        if field == "freeze" and pattern in new:
            raise OptionError(
                f"freeze: {pattern!r} is a weight of the new head, which must be trained\n"
                f"leave it out; {suggest_names(pattern, old)}"
            )
    others = [each for each in patterns if not (field == "train_only" and each in new)]
    found = matching(old, others, field)
    return list(dict.fromkeys(known.aliases.get(name, name) for name in found))
