"""A training session of a PyTorch module, and its state back in the module and its optimizer.

session = TrainingSession.from_torch(module, nn.CrossEntropyLoss(), optimizer, example=(x,), ...)
write_to_module(session, module)
write_to_optimizer(session, optimizer, module)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.optimizers.optimizer import Optimizer
from onward.passes.drop_unused import drop_unused
from onward.programs.build import build_program
from onward.programs.memory.engine_memory import FindEngineMemory
from onward.programs.program import Program, slot_name
from onward.programs.training_options import TrainingOptions
from onward.pytorch.call_structure import name_arguments
from onward.pytorch.named_model import unwrap
from onward.pytorch.torch_optimizers import (
    GroupOfTorch,
    read_groups,
    read_state,
    session_groups,
    write_state,
)
from onward.pytorch.trainable_model import TrainableModel, trainable_model
from onward.sessions.training.planned_engine import planned_engine
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram

_OURS = ("trainable", "frozen", "tied", "state", "frozen_batch_norms", "unbiased_variance")


def open_torch_session(
    module: nn.Module,
    loss: Any,
    optimizer: Any,
    *,
    example: Any,
    targets: Any = (),
    options: TrainingOptions | Mapping[str, Any] | None = None,
    sess_options: Any = None,
    providers: Any = None,
) -> TrainingSession:
    """See `TrainingSession.from_torch`."""
    if not isinstance(module, nn.Module):
        raise OptionError(
            f"from_torch takes a torch.nn.Module, not {type(module).__name__}\n"
            "an ONNX model is trained by TrainingSession(model, loss, optimizer)"
        )
    module, settings = unwrap(module), _checked(TrainingOptions.of(options), optimizer)
    args, kwargs = _call(example)
    named = _named_targets(module, loss, targets)
    groups = () if isinstance(optimizer, Optimizer) else read_groups(optimizer, module)
    found = trainable_model(module, loss, args, kwargs, named)
    engine = None if settings.memory is None else planned_engine(providers)
    program = _build(found, optimizer, groups, settings, engine)
    session = TrainingSession(
        TrainingProgram(program), sess_options=sess_options, providers=providers
    )
    if groups:
        _restore(session, *read_state(optimizer, groups))
    return session


def write_to_module(session: TrainingSession, module: nn.Module) -> None:
    """Copy a session's parameters and buffers into a module, in place.

    >>> from torch import nn
    >>> from onward import TrainingSession, losses, optimizers
    >>> layer = nn.Linear(3, 2)
    >>> example = (torch.ones(4, 3),)
    >>> session = TrainingSession.from_torch(
    ...     layer, losses.MSE(), optimizers.SGD(lr=0.1), example=example
    ... )
    >>> x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    >>> _ = session.step({"input": x, "target": y})
    >>> write_to_module(session, layer)
    >>> bool((layer.bias.detach().numpy() == session.parameters["bias"]).all())
    True
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {**session.parameters, **session.statistics}
    for name, array in given.items():
        tensor = held.get(name)
        if tensor is None or tuple(tensor.shape) != array.shape:
            found = "" if tensor is None else f" of shape {tuple(array.shape)}"
            raise OptionError(
                f"the module has no tensor {name!r}{found}, which the session trains\n"
                f"{suggest_names(name, held) if tensor is None else 'give the same module'}"
            )
    with torch.no_grad():
        for name, array in given.items():
            held[name].copy_(_as_tensor(array))


def write_to_optimizer(
    session: TrainingSession, optimizer: torch.optim.Optimizer, module: nn.Module
) -> None:
    """Copy a session's moments and number of steps into an optimizer of the module's parameters.

    Learning rates and other settings of the optimizer stay. Call `write_to_module` as well.
    """
    groups = read_groups(optimizer, module)
    tensors, _ = session.checkpoint()
    slots = {
        (slot, name): tensors[slot_name(slot, name)]
        for group in groups
        for name, parameter in group.parameters.items()
        for slot in group.optimizer.slots(tuple(parameter.shape))
        if slot_name(slot, name) in tensors
    }
    trained = {name for group in groups for name in group.parameters} & {*session.parameters}
    wanted = sum(
        len(group.optimizer.slots(tuple(group.parameters[name].shape)))
        for group in groups
        for name in trained & group.parameters.keys()
    )
    if len(slots) < wanted:
        raise OptionError(
            f"the session was trained by another optimizer than {type(optimizer).__name__}\n"
            "give the optimizer that the session was made with, or one of the same settings"
        )
    write_state(optimizer, groups, session.steps, slots)


# -- arguments -------------------------------------------------------------------------------------


def _checked(settings: TrainingOptions, optimizer: Any) -> TrainingOptions:
    """The options, without those that the module itself decides."""
    default = TrainingOptions()
    for name in _OURS:
        if getattr(settings, name) != getattr(default, name):
            raise OptionError(
                f"options.{name} is not for a PyTorch module: the module decides it\n"
                "freeze parameters with requires_grad_(False) before the session is made"
            )
    of_torch = isinstance(optimizer, torch.optim.Optimizer)
    if of_torch and settings.groups:
        raise OptionError(
            "options.groups and an optimizer of torch both give parameter groups\n"
            "leave options.groups out"
        )
    if not of_torch and not isinstance(optimizer, Optimizer):
        raise OptionError(
            "the optimizer must be one of onward.optimizers or torch.optim, not "
            f"{optimizer!r}\nfor example: torch.optim.AdamW(module.parameters())"
        )
    return settings


def _call(example: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Arguments by position and by name; one tensor is the only argument."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


def _named_targets(module: nn.Module, loss: Any, targets: Any) -> dict[str, Any]:
    """The targets of a loss of torch, by the names of its arguments."""
    args, kwargs = _call(targets)
    if loss is None or hasattr(loss, "build"):
        if args or kwargs:
            raise OptionError(
                "targets are for a loss of torch; a loss of onward.losses names its own\n"
                "leave targets out"
            )
        return {}
    if not callable(loss):
        raise OptionError(
            f"the loss must be one of onward.losses or a function of torch, not {loss!r}\n"
            "for example: torch.nn.CrossEntropyLoss(), or None if the module returns its loss"
        )
    if kwargs:
        return dict(kwargs)
    function = loss.forward if isinstance(loss, nn.Module) else loss
    named = name_arguments(function, (None, *args), {})
    return dict(list(named.items())[1:])


# -- the session ----------------------------------------------------------------------------------


def _build(
    found: TrainableModel,
    optimizer: Any,
    groups: tuple[GroupOfTorch, ...],
    settings: TrainingOptions,
    engine: FindEngineMemory | None,
) -> Program:
    """The program of a session; new values of buffers are no outputs of the model."""
    trained = found.parameters
    if groups:
        listed = {name for group in groups for name in group.parameters}
        trained = [name for name in trained if name in listed]
        settings = replace(settings, groups=session_groups(groups, trained))
        optimizer = groups[0].optimizer
    if not trained:
        raise OptionError(
            "there is nothing to train: the loss depends on no parameter of the optimizer that "
            "requires a gradient\n"
            "check requires_grad, and the parameters that the optimizer has"
        )
    outputs = settings.outputs if settings.outputs is not None else found.outputs
    settings = replace(
        settings,
        trainable=trained,
        tied=(),
        state=found.state,
        frozen_batch_norms=found.frozen_batch_norms,
        unbiased_variance=True,
        outputs=outputs,
    )
    program = build_program(found.model, found.loss, optimizer, settings, engine=engine)
    hidden = {*found.state.values()}
    for model in (program.predict, program.layout.model):
        graph = model.graph
        graph.outputs[:] = [v for v in graph.outputs if v.name not in hidden]
    drop_unused(program.predict)
    shown = tuple(name for name in program.layout.model_outputs if name not in hidden)
    return replace(program, layout=replace(program.layout, model_outputs=shown))


def _restore(
    session: TrainingSession, steps: int, slots: Mapping[tuple[str, str], np.ndarray[Any, Any]]
) -> None:
    """Continue from the state of an optimizer of torch."""
    if not steps and not slots:
        return
    tensors, properties = session.checkpoint()
    for (slot, name), array in slots.items():
        key = slot_name(slot, name)
        if key in tensors:
            tensors[key] = array.astype(tensors[key].dtype)
    training = properties["training"]
    updates = {**training["updates"], "steps": steps}
    session.restore(tensors, {**properties, "training": {**training, "updates": updates}})


def _as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array as a tensor; types that torch cannot read from numpy through float32."""
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return torch.from_numpy(np.array(array))  # a view of a session cannot be written
