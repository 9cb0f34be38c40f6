"""Optimizer: updates parameters with the gradients that a module has accumulated."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.errors import InvalidModel, OptionError
from onward.graph.paths import check_readable
from onward.graph.scan.file_metadata import metadata_of
from onward.programs.empty_batches import EMPTY
from onward.providers.ort.training.finite_check import NOT_FINITE
from onward.providers.ort.training.fused_step_probe import is_sound
from onward.training.api.graph_roles import TypesAndShapes
from onward.training.api.graph_sessions import open_graph
from onward.training.api.module import MAX_NUMBERS_PER_RUN, Module
from onward.training.api.optimizer_updates import ListUpdate, SessionUpdate, Update, read_updates
from onward.training.api.training_state import Slots, UpdateGraphs

log = logging.getLogger("onward")


class Optimizer:
    """Updates the parameters of a module with the graph of an optimizer model.

    Slots, step and learning rate are part of the module's state: training resumes from a
    checkpoint that has them. A loss or a gradient that is not finite never changes them.
    """

    skipped_steps: int  # because a loss or a gradient was not finite

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"module must be a Module, not {type(module).__name__}")
        self._module, self._state = module, module._state._state
        self.skipped_steps = 0
        check_readable(Path(optimizer_uri), "optimizer model")
        model = Path(optimizer_uri).read_bytes()
        metadata = _read_metadata(model, module)
        about, updates = _OptimizerMetadata(metadata), read_updates(metadata)
        self._trained = {name: module._roles.parameters[name] for name in module._roles.gradients}
        self._slots = about.slots(self._trained)
        self._stored = self._state.start_optimizer(self._slots, about.lr)
        if updates is not None and _update_all(updates, self._trained):
            self._update: Update = self._open(updates, about.lr)
        else:
            session = open_graph(model, module._options, module._providers)
            self._update = ListUpdate(session, self._state, list(module._roles.gradients))

    def step(self) -> None:
        """Update the parameters once.

        The step is skipped if a gradient is not finite (all gradients are then reset), or if all
        batches were empty.
        """
        self._state.check_loaded()
        if self._module._is_empty:
            log.warning(EMPTY, self._stored.step)
            return
        if not self._module._open_engine().finite:
            self.skipped_steps += 1
            log.warning(NOT_FINITE, self._stored.step)
            self._module.lazy_reset_grad()
            return
        if self._update.run(self.get_learning_rate(), self._stored.step + 1):
            self._stored.step += 1

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate from the next step on."""
        try:
            rate = float(learning_rate)
        except (TypeError, ValueError):
            rate = math.nan
        if not rate >= 0 or math.isinf(rate):
            raise OptionError(
                f"a learning rate must be a number, 0 or more, not {learning_rate!r}\n"
                "give one, such as 0.001"
            )
        self._stored.learning_rate = rate
        if not self._stored.step:
            self._stored.initial_learning_rate = rate

    def get_learning_rate(self) -> float:
        rate = self._stored.learning_rate
        return self._stored.initial_learning_rate if rate is None else rate

    def restart(self) -> None:
        """Start again with the slots of a new optimizer and step 0; the learning rate stays.

        In each round of federated learning, for one: the parameters are another model's then.
        """
        for slot, named in self._slots.items():
            for name, (_, _, initial) in named.items():
                self._stored.slots[slot][name][...] = initial
        self._stored.step = 0

    def _open(self, updates: UpdateGraphs, own_rate: float) -> SessionUpdate:
        """Open a session's updates; over adjacent rows where these cost little memory."""
        module = self._module
        size = sum(math.prod(shape) for _, shape in self._trained.values())
        paired = size <= MAX_NUMBERS_PER_RUN and is_sound(updates.probe)
        for each in updates.graphs:
            module._opener.open(each.bound if paired else each.graph)
        return SessionUpdate(updates, own_rate, self._state, module._open_engine, paired)


def _update_all(updates: UpdateGraphs, trained: TypesAndShapes) -> bool:
    """Whether the updates are of exactly these parameters."""
    kinds = {name: each.dtype for each in updates.layouts for name in each.parameters}
    return kinds == {name: dtype for name, (dtype, _) in trained.items()}


def _read_metadata(model: bytes, module: Module) -> dict[str, str]:
    """A model's metadata; for a model of a user's block, derived from its inputs."""
    if model[4:8] == b"ORTM":  # onnxruntime's own format
        metadata = open_graph(model, module._options).metadata
    else:
        metadata = metadata_of(model)
    if "onward.slots" in metadata:
        return metadata
    kinds = open_graph(model, module._options).input_types
    if not {"params", "gradients", "learning_rate", "step"} <= kinds.keys():
        raise InvalidModel(
            "not an optimizer model: its inputs lack params, gradients, learning_rate or step\n"
            "make it with onward.training.artifacts.generate_artifacts"
        )
    slots = [n for n, kind in kinds.items() if "seq" in kind and n not in ("params", "gradients")]
    return {**metadata, "onward.slots": json.dumps(slots)}


class _OptimizerMetadata:
    """The learning rate and slots in an optimizer model's metadata."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        try:
            self.lr = float(json.loads(metadata.get("onward.optimizer", "{}")).get("lr", 0.001))
            self.sequences = [str(name) for name in json.loads(metadata["onward.slots"])]
            layout: dict[str, Any] = json.loads(metadata.get("onward.slot_layout", "null")) or {}
            self._starts = {
                (sequence, name): (tuple(map(int, shape)), float(initial))
                for sequence, slots in layout.items()
                for name, (shape, initial) in slots.items()
            }
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InvalidModel(
                f"not an optimizer model: its metadata cannot be read ({error!r})\n"
                "make it with onward.training.artifacts.generate_artifacts"
            ) from error

    def slots(self, parameters: TypesAndShapes) -> dict[str, Slots]:
        """Each sequence's slots by parameter; one that a parameter does not have is empty."""
        return {
            sequence: {
                name: (_slot_type(dtype), *self._start(sequence, name, shape))
                for name, (dtype, shape) in parameters.items()
            }
            for sequence in self.sequences
        }

    def _start(
        self, sequence: str, name: str, shape: tuple[int, ...]
    ) -> tuple[tuple[int, ...], float]:
        if not self._starts:  # without metadata: as the parameter
            return shape, 0.0
        return self._starts.get((sequence, name), ((0,), 0.0))


def _slot_type(dtype: str) -> str:
    """The type of a parameter's slots: float32 for 16-bit parameters."""
    return dtype if dtype in ("float32", "float64") else "float32"
