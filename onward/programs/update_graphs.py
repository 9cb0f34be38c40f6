"""Build the update graphs of a program: one for each type and group of parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onward.optimizers.clip import ClipByNorm, ClipByValue
from onward.optimizers.groups import Assignment
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.update_models import flat_update, named_update
from onward.programs.program import AVERAGE, Shape, UpdateLayout
from onward.programs.training_options import TrainingOptions

Specs = Mapping[str, tuple[str, Shape]]  # name -> type, shape


def build_updates(
    assignments: Sequence[Assignment],
    parameters: Specs,
    settings: TrainingOptions,
    tables: Collection[str] = (),
) -> tuple[tuple[ir.Model, ...], tuple[UpdateLayout, ...]]:
    """A graph for each assignment and type, over one vector if its optimizer is elementwise.

    `tables` are the parameters whose gradients are rows (row_gradients.py).
    """
    built = []
    for optimizer, names in assignments:
        for dtype in dict.fromkeys(parameters[name][0] for name in names):
            same = {name: parameters[name][1] for name in names if parameters[name][0] == dtype}
            if optimizer is not None:
                graph, layout = build_update(optimizer, dtype, same, settings)
                built.append((graph, replace(layout, sparse=same.keys() <= {*tables})))
    graphs, layouts = zip(*built)
    return graphs, layouts


def build_update(
    optimizer: Optimizer, dtype: str, shapes: Mapping[str, Shape], settings: TrainingOptions
) -> tuple[ir.Model, UpdateLayout]:
    """The update of parameters that share a type and an optimizer."""
    value, norm, average = settings.clip_value, settings.clip_norm, settings.average
    clip = None if value is None else ClipByValue(limit=value)
    by_norm = None if norm is None else ClipByNorm(max_norm=norm)
    scaled = is_scaled(settings)
    if optimizer.elementwise:
        model = flat_update(optimizer, dtype, scaled, clip=clip, clip_norm=by_norm, average=average)
    else:
        specs = {name: (dtype, shape) for name, shape in shapes.items()}
        model = named_update(
            optimizer, specs, scaled, clip=clip, clip_norm=by_norm, average=average
        )
    slots: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        for slot, size in optimizer.slots(shape).items():
            slots.setdefault(slot, {})[name] = tuple(int(n) for n in size)
    initial = {slot: optimizer.initial(slot) for slot in slots if optimizer.initial(slot)}
    if average is not None:
        slots[AVERAGE] = dict(shapes)
    return model, UpdateLayout(
        dtype=dtype,
        parameters=tuple(shapes),
        flat=optimizer.elementwise,
        slots=slots,
        initial=initial,
        learning_rate=optimizer.lr,
        optimizer=repr(optimizer),
        slot_dtypes={slot: each.dtype for slot, each in optimizer.stored_slots().items()},
    )


def is_scaled(settings: TrainingOptions) -> bool:
    """Whether updates take a gradient scale."""
    return (
        settings.accumulate > 1 or settings.clip_norm is not None or settings.loss_scale is not None
    )
