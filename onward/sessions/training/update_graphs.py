"""The update graphs of a program: one for each type and group of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.optimizers.clip import ClipByValue
from onward.optimizers.graphs import flat_update, named_update
from onward.optimizers.groups import Assignment
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.pairs import paired
from onward.sessions.training.options import TrainingOptions
from onward.sessions.training.program import Shape, Update

AVERAGE = "average"
Specs = Mapping[str, tuple[str, Shape]]  # name -> type, shape


def update_graphs(
    assignments: Sequence[Assignment], parameters: Specs, settings: TrainingOptions
) -> tuple[Update, ...]:
    """A graph for each assignment, over one vector where its optimizer is elementwise."""
    updates = []
    for optimizer, names in assignments:
        for dtype in dict.fromkeys(parameters[name][0] for name in names):
            same = {name: parameters[name][1] for name in names if parameters[name][0] == dtype}
            if optimizer is not None:
                updates.append(update_graph(optimizer, dtype, same, settings))
    return tuple(updates)


def update_graph(
    optimizer: Optimizer, dtype: str, shapes: Mapping[str, Shape], settings: TrainingOptions
) -> Update:
    """The update of parameters that share a type and an optimizer."""
    clip = None if settings.clip_value is None else ClipByValue(limit=settings.clip_value)
    average, scaled = settings.average, is_scaled(settings)
    if optimizer.elementwise:
        model = flat_update(optimizer, dtype, scaled, clip=clip, average=average)
    else:
        specs = {name: (dtype, shape) for name, shape in shapes.items()}
        model = named_update(optimizer, specs, scaled, clip=clip, average=average)
    slots: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        for slot, size in optimizer.slots(shape).items():
            slots.setdefault(slot, {})[name] = tuple(int(n) for n in size)
    initial = {slot: optimizer.initial(slot) for slot in slots if optimizer.initial(slot)}
    if average is not None:
        slots[AVERAGE] = dict(shapes)
    bound, blocks = paired(model) if optimizer.elementwise else (model, ())
    return Update(
        graph=ir.to_proto(model).SerializeToString(),
        bound=ir.to_proto(bound).SerializeToString(),
        dtype=dtype,
        parameters=tuple(shapes),
        flat=optimizer.elementwise,
        slots=slots,
        initial=initial,
        learning_rate=optimizer.lr,
        optimizer=repr(optimizer),
        blocks=blocks,
    )


def is_scaled(settings: TrainingOptions) -> bool:
    """Whether gradients are multiplied by a number before they are used."""
    return (
        settings.accumulate > 1 or settings.clip_norm is not None or settings.loss_scale is not None
    )
