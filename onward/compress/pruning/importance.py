"""How much each unit matters to a model's outputs: by magnitude, activation or gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.pruning.activations import ActivationMoments, Consumer
from onward.compress.pruning.axes import Array, Positions
from onward.compress.pruning.units import UnitGroup, all_weights
from onward.errors import OptionError
from onward.gradients.model import gradient
from onward.graph.dtypes import FLOATS
from onward.graph.graph_ops import extend
from onward.losses.loss import Loss
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

KINDS = ("magnitude", "activation", "gradient")
_LOSS = "onward_loss"


def by_magnitude(
    model: ir.Model, positions: Positions, groups: Sequence[UnitGroup]
) -> dict[str, Array]:
    """The norm of the slices of all weights that belong to a unit."""
    squares = np.zeros(len(positions.labels))
    for value in all_weights(model):
        if value.dtype not in FLOATS or value.const_value is None:
            continue
        array = np.asarray(value.const_value.numpy(), np.float64)
        if array.ndim < 2:
            continue
        for axis in range(array.ndim):
            labels = positions.of((value, axis))
            if labels is not None:
                others = tuple(place for place in range(array.ndim) if place != axis)
                np.add.at(squares, labels, (array**2).sum(axis=others))
    return {group.name: np.sqrt(squares[group.labels]) for group in groups}


def by_activation(
    consumers: Sequence[Consumer],
    moments: Mapping[str, ActivationMoments],
    positions: Positions,
    groups: Sequence[UnitGroup],
) -> dict[str, Array]:
    """The variance of a unit's data times the squared norm of the weights that read it.

    It is the share of the variance of what follows that goes with the unit, once the mean of the
    unit is added to the bias.
    """
    squares = np.zeros(len(positions.labels))
    for consumer in consumers:
        if str(consumer.x.name) not in moments:
            continue
        labels = positions.of((consumer.x, consumer.axis))
        if labels is None:
            continue
        variance = moments[str(consumer.x.name)].variance
        norms = consumer.column_norms()
        if len(norms) == len(labels) == len(variance):
            shares = variance * norms
            np.add.at(squares, labels, shares / max(float(shares.sum()), 1e-30))
    return {group.name: np.sqrt(squares[group.labels]) for group in groups}


def by_gradient(
    model: ir.Model,
    positions: Positions,
    groups: Sequence[UnitGroup],
    calibration: Calibration,
    *,
    loss: Loss | None = None,
    providers: Asked = None,
    seed: int = 0,
) -> dict[str, Array]:
    """|sum of w dw| over a unit's weights: how much the loss, or the outputs, change without it.

    Groups whose weights are all inside of If, Loop or Scan are left out: they have no gradient.
    Without a loss the outputs are multiplied by random numbers; the mean square over them is the
    squared change of the outputs.
    """
    weights = _sliced_weights(model, positions)
    if not weights:
        return {}
    names = [str(value.name) for value in weights]
    outputs = [str(v.name) for v in model.graph.outputs if v.dtype in FLOATS]
    if not outputs:
        raise OptionError("importance='gradient' needs an output of floats\nuse 'magnitude'")
    cotangents = {name: f"{name}_cotangent" for name in outputs}
    if loss is not None:
        graph = gradient(_with_loss(model, loss), _LOSS, names)
    else:
        graph = gradient(model, cotangents, names)
    session = InferenceSession(graph, SessionOptions(log_severity_level=4), providers)
    rng = np.random.default_rng(seed)
    squares = np.zeros(len(positions.labels))
    known = {str(v.name) for v in graph.graph.inputs}
    for feeds, targets in calibration.labelled_batches():
        ready: dict[str, Any] = dict(feeds)
        if loss is None:
            ready |= _random_cotangents(model, feeds, cotangents, rng, providers)
        elif targets is None:
            raise OptionError("a loss needs targets\ngive target=, the column that holds them")
        else:
            free = [name for name in known if name not in feeds]
            ready |= dict.fromkeys(free, targets)
        found = session.run([f"{name}_grad" for name in names], ready)
        changes = np.zeros(len(positions.labels))
        for value, dw in zip(weights, found, strict=True):
            assert value.const_value is not None
            product = np.asarray(value.const_value.numpy(), np.float64) * dw
            _add_to_units(changes, product, value, positions)
        squares += changes**2
    rated = {group.name: np.sqrt(squares[group.labels]) for group in groups}
    return {name: each for name, each in rated.items() if each.any()}


def _sliced_weights(model: ir.Model, positions: Positions) -> list[ir.Value]:
    """Weights of the main graph with a slice for some unit, which produce units or read them."""
    own = set(model.graph.initializers.values())
    found = []
    for value in all_weights(model):
        if value not in own or value.dtype not in FLOATS or len(value.shape or ()) < 2:
            continue
        if any(_free_labels(value, axis, positions) for axis in range(len(value.shape or ()))):
            found.append(value)
    return found


def _free_labels(value: ir.Value, axis: int, positions: Positions) -> bool:
    labels = positions.of((value, axis))
    return labels is not None and not bool(positions.pinned[labels].all())


def _add_to_units(changes: Array, product: Array, value: ir.Value, positions: Positions) -> None:
    """Add w dw to the units whose outgoing slices a weight has: the last of its free axes."""
    for axis in range(product.ndim):
        labels = positions.of((value, axis))
        if labels is not None and _free_labels(value, axis, positions):
            others = tuple(place for place in range(product.ndim) if place != axis)
            np.add.at(changes, labels, product.sum(axis=others) / 2)


def _random_cotangents(
    model: ir.Model,
    feeds: Mapping[str, Any],
    cotangents: Mapping[str, str],
    rng: np.random.Generator,
    providers: Asked,
) -> dict[str, Array]:
    session = InferenceSession(model, SessionOptions(log_severity_level=4), providers)
    outputs = session.run(list(cotangents), dict(feeds))
    found = {}
    for name, y in zip(cotangents.values(), outputs, strict=True):
        spread = float(np.std(y)) or 1.0
        found[name] = (rng.standard_normal(y.shape) / spread).astype(y.dtype)
    return found


def _with_loss(model: ir.Model, loss: Loss) -> ir.Model:
    copy = model.clone()
    op = extend(copy)
    values = {str(value.name): value for value in copy.graph.outputs}
    total = op.Identity(loss.build(op, values))
    total.name = _LOSS
    copy.graph.outputs.append(total)
    return copy
