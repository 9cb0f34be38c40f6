"""Export a run: the trained model as a clean ONNX file, with its preprocessing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.graph.files import save
from onward.programs.program import AVERAGE, slot_name
from onward.runner.plan.preprocessing import store
from onward.runner.run import Run

log = logging.getLogger("onward")

Array = np.ndarray[Any, Any]


def export_run(run: Run) -> None:
    """Write model.onnx, and the adapters if they are kept; process 0 does it for all."""
    tensors = trained_tensors(run)
    if run.is_first:
        _write_model(run, tensors)


def _write_model(run: Run, tensors: Mapping[str, Array]) -> None:
    adapted = run.plan.adapted
    model = adapted.export(tensors)
    store(model, run.plan.preprocessing)
    save(model, run.folder.model)
    if run.config.keep_adapter and adapted.save_adapter is not None:
        adapted.save_adapter(run.folder.adapter, tensors)


def trained_tensors(run: Run) -> dict[str, Array]:
    """Parameters and statistics of the best or the last step; averages where they are kept."""
    session = run.session
    names = [*session.parameters, *session.statistics]
    best = run.best
    if run.config.export == "best" and best is not None and best.step != run.step:
        found = run.checkpoints.best()
        if run.is_first and (found is None or found.step != best.step):
            step = run.step if found is None else found.step
            log.warning(
                "the best weights, of step %s, could not be saved: those of step %s are exported\n"
                "free space on the disk of %s, and train again",
                best.step, step, run.folder.checkpoints,
            )  # fmt: skip
        if run.team.broadcast(found is not None):  # the others export nothing
            averaged = bool(session.averages)
            return {} if found is None else _choose(found.tensors, names, averaged)
    tensors: dict[str, Array] = {**session.parameters, **session.statistics}
    return {**tensors, **session.averages}


def _choose(tensors: Mapping[str, Array], names: list[str], averaged: bool) -> dict[str, Array]:
    chosen = {name: tensors[name] for name in names if name in tensors}  # a stage has fewer
    if averaged:
        averages = {name: tensors.get(slot_name(AVERAGE, name)) for name in names}
        chosen |= {name: each for name, each in averages.items() if each is not None}
    return chosen
