"""A module and its loss as what a training session is built from.

found = trainable_model(module, loss, args, kwargs, targets)
TrainingSession(found.model, found.loss, optimizer, {"state": found.state, ...})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from torch import nn

from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.graph_ops import extend
from onward.graph.initializer_names import rename
from onward.graph.scopes import ancestors
from onward.losses.combined import build_with_parts
from onward.losses.loss import Loss
from onward.passes.pipelines import PREPARE
from onward.pytorch.call_structure import name_arguments
from onward.pytorch.captured_loss import separate_loss
from onward.pytorch.named_model import NamedModel, in_mode, named_model

LOSS = "loss"
_NETWORK = "network."  # the module's tensors in a module with its loss
_RESULT = "output"  # the module's results there


@dataclass(frozen=True)
class TrainableModel:
    """A prepared model, its loss, and which of its tensors a step changes."""

    model: ir.Model
    loss: Loss
    outputs: tuple[str, ...]  # the module's results, without the loss
    state: dict[str, str]  # buffer -> the output that it becomes
    parameters: list[str]  # with gradients, that the loss depends on
    frozen_batch_norms: list[str]  # layers that the user put into inference mode


def trainable_model(
    module: nn.Module,
    loss: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Mapping[str, Any],
) -> TrainableModel:
    """Capture a module in training mode, with its loss.

    `loss` is one of onward.losses, a loss of torch that is called with the module's result and the
    targets, or None: the module returns it.
    """
    given = name_arguments(module.forward, args, kwargs)
    whole: nn.Module = module
    if loss is not None and not hasattr(loss, "build"):
        whole = _WithLoss(module, loss, len(args), list(targets))
        args, kwargs = (), {**given, **targets}
    with in_mode(module, training=True):
        whole.training = True
        found = named_model(whole, args, kwargs)
        frozen = _frozen_norms(module)
    if whole is not module:
        found = _unwrap(found)
    trained = {name for name, tensor in module.named_parameters() if tensor.requires_grad}
    tensors = {*trained, *(n for n, _ in module.named_parameters())}
    tensors |= {name for name, _ in module.named_buffers()}
    model = PREPARE(found.model)
    outputs = found.outputs
    if hasattr(loss, "build"):
        needed = _needed_by(model, loss)
    else:
        name = _find_loss(model, found.outputs, module)
        needed = _names_before(model, name)
        outputs = tuple(each for each in outputs if each != name)
        model, loss, _ = separate_loss(model, name, tensors)
    return TrainableModel(
        model=model,
        loss=loss,
        outputs=outputs,
        state=found.state,
        parameters=[name for name in model.graph.initializers if name in trained & needed],
        frozen_batch_norms=_nodes_of(model, frozen),
    )


class _WithLoss(nn.Module):
    """A module and a loss of its result; returns both."""

    def __init__(
        self, network: nn.Module, loss: Any, positional: int, targets: Sequence[str]
    ) -> None:
        super().__init__()
        self.network, self.criterion = network, loss
        self._positional, self._targets = positional, targets

    def forward(self, **given: Any) -> dict[str, Any]:
        targets = [given.pop(name) for name in self._targets]
        names = list(given)
        args = [given.pop(name) for name in names[: self._positional]]
        result = self.network(*args, **given)
        return {LOSS: self.criterion(result, *targets), _RESULT: result}


def _unwrap(found: NamedModel) -> NamedModel:
    """Give the tensors and results of the module the names that they have without the loss."""
    graph = found.model.graph
    for name, value in list(graph.initializers.items()):
        if name.startswith(_NETWORK):
            rename(value, name.removeprefix(_NETWORK))
    taken = {str(value.name) for value in graph.inputs} | {LOSS, *graph.initializers}
    for value in graph.outputs:
        name = str(value.name)
        if name in found.outputs:
            short = name.removeprefix(f"{_RESULT}_")
            value.name = name if short in taken or short[0].isdigit() else short
        else:
            value.name = name.removeprefix(_NETWORK)
    state = {b.removeprefix(_NETWORK): o.removeprefix(_NETWORK) for b, o in found.state.items()}
    outputs = tuple(str(value.name) for value in graph.outputs)[: len(found.outputs)]
    return NamedModel(found.model, outputs, state, found.inputs)


# -- the loss ------------------------------------------------------------------------------------


def _find_loss(model: ir.Model, outputs: Sequence[str], module: nn.Module) -> str:
    """The output that is the loss, which is then called `loss`."""
    values = {str(value.name): value for value in model.graph.outputs}
    value = values[LOSS if LOSS in outputs else outputs[0]]
    if value.dtype not in FLOATS or value.shape is None or len(value.shape):
        shape = "" if value.shape is None else f" of shape {[str(size) for size in value.shape]}"
        raise OptionError(
            f"{type(module).__name__} returns {value.name!r}{shape}, which is not a loss: one "
            "number\n"
            "give a loss of onward.losses or torch.nn, or pass labels so that the module returns it"
        )
    value.name = LOSS
    return LOSS


def _names_before(model: ir.Model, output: str) -> set[str]:
    """The names of the values that an output depends on."""
    values = [value for value in model.graph.outputs if value.name == output]
    return {str(value.name) for value in ancestors(model.graph, values)}


def _needed_by(model: ir.Model, loss: Loss) -> set[str]:
    """The names of the values that a loss of onward.losses depends on."""
    copy = model.clone()
    graph, op = copy.graph, extend(copy)
    made = [value for node in graph for value in node.outputs]
    values = {str(v.name): v for v in (*graph.outputs, *graph.inputs, *made)}
    found, _ = build_with_parts(loss, op, values)
    return {str(value.name) for value in ancestors(graph, [found])}


# -- BatchNorm in inference mode -----------------------------------------------------------------


def _frozen_norms(module: nn.Module) -> set[str]:
    """The running means of BatchNorm layers that are in inference mode."""
    norms = nn.modules.batchnorm._BatchNorm
    return {
        f"{name}.running_mean".lstrip(".")
        for name, each in module.named_modules()
        if isinstance(each, norms) and not each.training and each.running_mean is not None
    }


def _nodes_of(model: ir.Model, means: set[str]) -> list[str]:
    return [
        str(node.outputs[0].name)
        for node in model.graph
        if node.op_type == "BatchNormalization"
        and (mean := node.inputs[3]) is not None
        and mean.name in means
    ]
