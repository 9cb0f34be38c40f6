"""TrainingProgram: a compiled model, loss and optimizer, ready for any engine.

`compile_training` makes one; `save` writes it as stock onnxruntime runs it, for devices that have
only numpy and onnxruntime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.lazy import LazyModule
from onward.providers.ort import processors
from onward.providers.ort.training.lowered import LoweredProgram, load_lowered

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.losses.loss import Loss
    from onward.optimizers.optimizer import Optimizer
    from onward.programs import build as building
    from onward.programs.program import Layout, Program, Settings, TrainableParameter
    from onward.programs.training_options import TrainingOptions
    from onward.providers.choose import Asked
    from onward.providers.ort import processor_probe
    from onward.providers.ort.training import lowering
    from onward.sessions.training import planned_engine as planning
else:  # they build graphs; a saved program does not need them
    building = LazyModule("onward.programs.build")
    processor_probe = LazyModule("onward.providers.ort.processor_probe")
    lowering = LazyModule("onward.providers.ort.training.lowering")
    planning = LazyModule("onward.sessions.training.planned_engine")


class TrainingProgram:
    """A compiled model, loss and optimizer."""

    def __init__(self, compiled: Program | LoweredProgram) -> None:
        self._compiled = compiled

    @property
    def layout(self) -> Layout:
        """The inputs, outputs and tensors of the program."""
        return self._compiled.layout

    @property
    def parameters(self) -> tuple[TrainableParameter, ...]:
        return self.layout.parameters

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return self.layout.names

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's own inputs."""
        return self.layout.inputs

    @property
    def targets(self) -> tuple[str, ...]:
        """The inputs of the loss in addition to them."""
        return self.layout.targets

    @property
    def outputs(self) -> tuple[str, ...]:
        """What a step returns in addition to the loss."""
        return self.layout.outputs

    @property
    def settings(self) -> Settings:
        return self.layout.settings

    @property
    def neutral(self) -> Program | None:
        """The graphs for any engine; None for a program that was saved for onnxruntime."""
        return None if isinstance(self._compiled, LoweredProgram) else self._compiled

    @cached_property
    def lowered(self) -> LoweredProgram:
        """The graphs as stock onnxruntime runs them on any processor."""
        if isinstance(self._compiled, LoweredProgram):
            return self._compiled
        found: LoweredProgram = lowering.lower_program(self._compiled)
        return found

    @cached_property
    def lowered_here(self) -> LoweredProgram:
        """The graphs as stock onnxruntime runs them fastest on this machine's processor."""
        if isinstance(self._compiled, LoweredProgram):
            return self._compiled.for_this_processor()
        processor = processors.find_processor(processor_probe.processor_probe())
        if processor == processors.ANY:
            return self.lowered
        found: LoweredProgram = lowering.lower_program(self._compiled, processor)
        return found

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it to a folder, from which `TrainingSession` and `load_program` read it.

        The program runs on any processor; it also holds the graphs that are faster on some.
        """
        if isinstance(self._compiled, LoweredProgram):
            return self._compiled.save(folder)
        everywhere: LoweredProgram = lowering.lower_for_every_processor(self._compiled)
        return everywhere.save(folder)


def compile_training(
    model: Source,
    loss: Loss | None,
    optimizer: Optimizer | None,
    options: TrainingOptions | Mapping[str, Any] | None = None,
    *,
    providers: Asked = None,
) -> TrainingProgram:
    """Build the graphs of a TrainingSession: for the step, for evaluation and for updates.

    The program runs on any engine; with `providers`, its memory is planned for the first of them.
    """
    engine = None if providers is None else planning.planned_engine(providers)
    return TrainingProgram(building.build_program(model, loss, optimizer, options, engine=engine))


def load_program(folder: str | os.PathLike[str]) -> TrainingProgram:
    """A program that `TrainingProgram.save` wrote."""
    return TrainingProgram(load_lowered(folder))
