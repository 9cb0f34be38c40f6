"""SessionState: the tensors and counters of a training session, to read, set, save and restore."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.checkpoints import tensor_files
from onward.checkpoints.sharded.pieces import Piece, whole_pieces
from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.programs.program import (
    AVERAGE,
    FLOAT8_HISTORY,
    Array,
    describe_left_out,
    slot_name,
)
from onward.sessions.training import session_checkpoint
from onward.sessions.training.call_lock import locked
from onward.sessions.training.open_program import OpenedTraining
from onward.sessions.training.process_state import read_process_state, restore_process_state
from onward.sessions.training.tensor_views import CurrentStore, TensorView, check_tensors
from onward.sessions.training.training_program import TrainingProgram
from onward.sessions.training.update_cycle import UpdateCycle

if TYPE_CHECKING:
    from onward.programs import export as exporting
    from onward.providers.provider import TrainingExecutable
else:  # it builds graphs; a saved program does not need it
    exporting = LazyModule("onward.programs.export")


class SessionState:
    """What a TrainingSession has, and how it is saved; the session itself adds training."""

    def __init__(self, program: TrainingProgram, opened: OpenedTraining) -> None:
        self._lock = threading.RLock()
        self._program, self._layout = program, program.layout
        self._cycle = UpdateCycle(self._layout, opened.engine)
        self._progress = self._cycle.progress
        self._providers = opened.providers
        self._tensors = CurrentStore(opened.engine.store)
        self.properties: dict[str, Any] = {}  # the user's; saved with every checkpoint

    @property
    def _engine(self) -> TrainingExecutable:
        return self._cycle.engine

    # -- reading -------------------------------------------------------------------------------

    @property
    def parameters(self) -> TensorView:
        """The parameters by name, to read; `set_parameters` writes them."""
        return self._tensors.view({name: name for name in self._layout.names})

    @property
    def averages(self) -> TensorView:
        """The averaged parameters, if TrainingOptions.average is set."""
        names = self._layout.names if self._layout.settings.averaged else []
        return self._tensors.view({name: slot_name(AVERAGE, name) for name in names})

    @property
    def statistics(self) -> TensorView:
        """The running statistics of BatchNormalization, which training changes, too."""
        names = (name for name in self._layout.state if name != FLOAT8_HISTORY)  # not the model's
        return self._tensors.view({name: name for name in names})

    @property
    def program(self) -> TrainingProgram:
        return self._program

    def describe_sparsity(self, feeds: Mapping[str, Any] | None = None) -> str:
        """What TrainingOptions.sparsity leaves out of a step, or why not, a line for each.

        With the feeds of a batch also the share of tokens that are left out of it.
        """
        return describe_left_out(self._layout, feeds)

    def get_providers(self) -> list[str]:
        """The providers in use, the preferred one first."""
        return list(self._providers)

    @property
    def input_names(self) -> list[str]:
        """The feeds of `step` and `evaluate`: the model's inputs, then the loss's."""
        return [*self._layout.inputs, *self._layout.targets]

    @property
    def output_names(self) -> list[str]:
        return [*self._layout.results_of("train")]

    @property
    def steps(self) -> int:
        """The number of updates."""
        return self._progress.steps

    @property
    def skipped_steps(self) -> int:
        """The number of updates that were skipped because gradients were not finite."""
        return self._progress.skipped

    @property
    def lookahead(self) -> int:
        """The number of updates after which `steps` is known: an engine on a GPU runs ahead."""
        return self._engine.lookahead

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent to others; 0 where one process trains by itself."""
        return getattr(self._engine, "bytes_sent", 0)

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next step; waits for an engine that runs ahead."""
        return self._cycle.scale.value

    @property
    def learning_rate(self) -> float:
        """The optimizer's own learning rate at the next update, by the schedule."""
        return self._progress.learning_rate

    @property
    def expected_learning_rate(self) -> float:
        """`learning_rate` without waiting for an engine that runs ahead.

        It is exact unless one of the updates that are still computed will be skipped.
        """
        return self._progress.expected_rate

    @locked
    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's own rate; groups keep their ratio to it, the schedule applies."""
        self._cycle.set_learning_rate(rate)

    # -- saving -------------------------------------------------------------------------------

    @locked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: one file, atomically, verified when it is read."""
        tensor_files.write(path, *self.checkpoint())

    @locked
    def checkpoint(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors and properties of a checkpoint, for `Checkpoints.save(*..., step=...)`."""
        store, pending = self._engine.store, self._cycle.has_gradients
        tensors = session_checkpoint.tensors_of(self._layout, store, pending)
        return tensors | read_process_state(self._engine), self._describe_state()

    @locked
    def checkpoint_pieces(self) -> tuple[dict[str, Piece], dict[str, Any]]:
        """`checkpoint` in pieces that this process holds, for `ShardedCheckpoints.save`."""
        store, pending = self._engine.store, self._cycle.has_gradients
        pieces = session_checkpoint.pieces_of(self._layout, store, pending)
        own = whole_pieces(read_process_state(self._engine))
        return pieces | own, self._describe_state()

    def _describe_state(self) -> dict[str, Any]:
        """The properties of a checkpoint."""
        training, rate = self._cycle.state(), self._progress.learning_rate
        return session_checkpoint.properties_of(self._layout, training, rate, self.properties)

    @locked
    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint of the same model, bit for bit."""
        found = tensor_files.read(path)
        self.restore(found.tensors, found.properties, where=str(path))

    @locked
    def restore(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        *,
        where: str = "the checkpoint",
    ) -> None:
        """Continue from what `checkpoint` returned; nothing changes if it does not fit."""
        training = session_checkpoint.training_of(
            properties, where, [update.learning_rate for update in self._layout.updates]
        )
        store = self._engine.store
        session_checkpoint.restore_tensors(
            self._layout,
            store,
            tensors,
            training["micro"] > 0,
            where,
            lambda: restore_process_state(self._engine, tensors),
        )
        self._cycle.restore(training)
        self.properties = dict(properties.get("user", {}))

    @locked
    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Set parameters (and statistics) by name; if one does not fit, none is set."""
        known = {
            n: spec for n, spec in self._layout.tensors().items() if not n.startswith("optimizer/")
        }
        for name, array in check_tensors(tensors, known).items():
            self._engine.store.write(name, array)

    @locked
    def export(
        self,
        path: str | os.PathLike[str],
        outputs: Sequence[str] | None = None,
        *,
        averaged: bool = False,
    ) -> None:
        """Write a clean inference model with the trained (or averaged) parameters."""
        tensors = self.averages if averaged else self.parameters
        if averaged and not tensors:
            raise OptionError("there is no average\nset TrainingOptions.average when you train")
        exporting.write(self._layout, {**tensors, **self.statistics}, path, outputs)
