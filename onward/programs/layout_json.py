"""A program's layout as JSON values, without its tensors and its model, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.errors import OptionError
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.schedules import schedule_from_dict
from onward.programs.derived_feeds import packed_rows_from_json
from onward.programs.label_ranges import LabelRange
from onward.programs.program import Array, Layout, Settings, TrainableParameter, UpdateLayout


def layout_to_json(layout: Layout, model: str | None = None) -> dict[str, Any]:
    """A layout as JSON values; `model` is what they say instead of its model."""
    plain = {f.name: getattr(layout, f.name) for f in dataclasses.fields(layout)}
    if layout.sums:
        raise OptionError(
            "a program with sync_batch_norm trains on many processes and cannot be saved\n"
            "save one that is compiled without it: compile_training(...).save(folder)"
        )
    del plain["initial"], plain["weight"], plain["sums"]  # a saved program trains in one process
    plain["model"] = model
    for name in ("parameters", "updates", "labels", "derived"):
        plain[name] = [dataclasses.asdict(each) for each in plain[name]]
    settings = layout.settings
    found = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    if isinstance(settings.loss_scale, DynamicLossScale):
        found["loss_scale"] = dataclasses.asdict(settings.loss_scale)
    if settings.schedule is not None:
        found["schedule"] = settings.schedule.to_dict()
    return {**plain, "settings": found}


def layout_from_json(
    plain: Mapping[str, Any], initial: dict[str, Array], model: Any = None
) -> Layout:
    """The layout of JSON values, with these first tensors and this model."""
    plain = {**plain, "settings": dict(plain["settings"])}
    settings = plain.pop("settings")
    if isinstance(settings["loss_scale"], dict):
        settings["loss_scale"] = DynamicLossScale(**settings["loss_scale"])
    if settings["schedule"] is not None:
        settings["schedule"] = schedule_from_dict(settings["schedule"])
    for name in ("frozen", "inputs", "targets", "outputs", "model_outputs"):
        plain[name] = tuple(plain[name])
    plain["notes"] = tuple(plain.get("notes", ()))
    derived = [tuples(each) for each in plain.pop("derived", ())]  # absent in older files
    del plain["model"]
    return Layout(
        parameters=tuple(TrainableParameter(**tuples(each)) for each in plain.pop("parameters")),
        updates=tuple(UpdateLayout(**tuples(each)) for each in plain.pop("updates")),
        labels=tuple(LabelRange(**each) for each in plain.pop("labels")),
        derived=tuple(packed_rows_from_json(each) for each in derived),
        settings=Settings(**settings),
        initial=initial,
        model=model,
        **plain,
    )


def tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the lists of a JSON file to tuples."""
    return {name: to_tuple(value) for name, value in plain.items()}


def to_tuple(value: Any) -> Any:
    """A list of a JSON file as a tuple, and all lists in it."""
    if isinstance(value, dict):
        return tuples(value)
    return tuple(map(to_tuple, value)) if isinstance(value, list) else value
