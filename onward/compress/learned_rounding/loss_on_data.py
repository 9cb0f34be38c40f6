"""LossOnData: the mean loss of a model on labelled batches."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.errors import DataError, OptionError
from onward.graph.graph_ops import extend
from onward.losses.loss import Loss
from onward.passes.pipelines import PREPARE
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_NAME = "tuning_loss"


class LossOnData:
    """Rates models by a loss; batches must have targets."""

    def __init__(self, loss: Loss, data: Calibration) -> None:
        if next(data.labelled_batches())[1] is None:
            raise DataError(
                "the loss needs targets, and the data has none\n"
                "give the name of the target, or batches of (feeds, targets)"
            )
        self._loss, self._data = loss, data

    def score(self, model: ir.Model) -> float:
        """Minus the mean loss of the batches; minus infinity if it is not finite."""
        changed, target = _with_loss(model, self._loss)
        session = InferenceSession(changed, SessionOptions(log_severity_level=4))
        total, count = 0.0, 0
        for feeds, targets in self._data.labelled_batches():
            total += float(session.run([_NAME], {**feeds, target: targets})[0])
            count += 1
        return -total / count if math.isfinite(total) else -math.inf


def target_name(model: ir.Model, loss: Loss) -> str:
    """The name of the input that a loss adds to a model."""
    return _with_loss(model, loss)[1]


def _with_loss(model: ir.Model, loss: Loss) -> tuple[ir.Model, str]:
    """A copy of a model that has a loss as its output, and the name of the loss's input."""
    changed = PREPARE(model.clone())
    known = {str(value.name) for value in changed.graph.inputs}
    op = extend(changed)
    values = {str(value.name): value for value in changed.graph.outputs}
    value = op.Identity(loss.build(op, values))
    value.name = _NAME
    changed.graph.outputs.clear()
    changed.graph.outputs.append(value)
    added = [str(each.name) for each in changed.graph.inputs if str(each.name) not in known]
    if len(added) != 1:
        raise OptionError(
            f"{type(loss).__name__} reads {len(added)} inputs of its own, and batches have one set "
            "of targets\ngive a loss with one target"
        )
    return changed, added[0]
