"""Program: the graphs compiled from a model, a loss and an optimizer, for any engine.

    train     feeds, parameters, state -> loss, outputs, gradients, new state
    evaluate  feeds, parameters, state -> loss, outputs
    predict   the model's own inputs, parameters, state -> its own outputs
    updates   parameters, gradients, slots, learning rate, step -> new parameters, new slots

The graphs are in standard operators and calls of domain `onward`; nothing in them is specific to
one engine. Providers lower them when they open a program (onward/providers/ort/training).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.graph.dtypes import BY_NUMPY
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.schedules import Schedule
from onward.programs.batch_weights import BatchWeight
from onward.programs.derived_feeds import PackedRows
from onward.programs.label_ranges import LabelRange
from onward.programs.memory.engine_memory import EVERY_VALUE, EngineMemory

if TYPE_CHECKING:  # a device that trains a saved program has no onnx-ir
    import onnx_ir as ir

    from onward.passes.random_draws import Draws

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Spec = tuple[np.dtype[Any], Shape]

LOSS = "loss"  # the name of the loss among the outputs
SCALE = "onward.loss_scale"
DRAW = "onward.draw"  # (seed, step, micro-batch), which random numbers are computed from
FLOAT8_HISTORY = "onward.float8_history"  # the state that scales of 8-bit products come from
AVERAGE = "average"  # the slot of averaged parameters


@dataclass(frozen=True, kw_only=True)
class TrainableParameter:
    """A tensor that is trained: in float32 or float64, whatever type the model has it in."""

    name: str
    shape: Shape
    gradient: str  # the train graph's output

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class UpdateLayout:
    """The tensors of one update: parameters that share type, optimizer and learning rate."""

    dtype: str
    parameters: tuple[str, ...]
    flat: bool  # whether they are one vector, or separate tensors by name
    slots: dict[str, dict[str, Shape]]  # slot -> parameter -> shape; of all parameters where flat
    initial: dict[str, float]  # the first values of slots that do not start at 0
    learning_rate: float
    optimizer: str  # its repr, for messages
    slot_dtypes: dict[str, str] = field(default_factory=dict)  # of slots in another type
    sparse: bool = False  # whether it is one table, of which an engine may update only rows read

    def slot_dtype(self, slot: str) -> np.dtype[Any]:
        """The type of a slot."""
        return BY_NUMPY[self.slot_dtypes.get(slot, self.dtype)].dtype


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of training that a program needs."""

    accumulate: int
    clip_norm: float | None
    skip_nonfinite: bool
    seed: int
    scaled: bool  # whether updates take a `gradient_scale`
    loss_scale: float | DynamicLossScale | None
    schedule: Schedule | None
    learning_rate: float  # the optimizer's own
    loss_dtype: str
    averaged: bool
    precision: str | None = None  # the 16-bit type of the forward pass: "bfloat16" or "float16"
    products: str | None = None  # "fp8": products of linear layers in 8 bits
    emulated: bool = False  # whether it may run without instructions for that type


@dataclass(frozen=True, kw_only=True)
class SharedSum:
    """A vector that is summed over processes while the train graph runs."""

    part: str  # the output with what this process adds
    total: str  # the input that takes the sum
    size: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A program without its graphs: the names and shapes of its tensors, and their first values."""

    parameters: tuple[TrainableParameter, ...]
    updates: tuple[UpdateLayout, ...]
    state: dict[str, str]  # tensor that each step replaces -> output with its new value
    frozen: tuple[str, ...]  # tensors that the graphs take as inputs and that do not change
    inputs: tuple[str, ...]  # the model's own
    targets: tuple[str, ...]  # the inputs of the loss, in addition to them
    outputs: tuple[str, ...]  # in addition to the loss, of `train` and `evaluate`
    model_outputs: tuple[str, ...]  # of `predict`
    labels: tuple[LabelRange, ...]
    settings: Settings
    initial: dict[str, Array] = field(repr=False)
    weight: BatchWeight = field(default_factory=BatchWeight)  # of a batch among others
    sums: tuple[SharedSum, ...] = ()  # over processes, in the order of the train graph
    derived: tuple[PackedRows, ...] = ()  # inputs of `train` that are computed from feeds
    notes: tuple[str, ...] = ()  # what was left out of `train`, or why not
    model: Any = field(default=None, repr=False)  # what `export` starts from: a model, or its path

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    @property
    def fed(self) -> tuple[str, ...]:
        """The inputs of `train` that are feeds, or computed from feeds."""
        derived = (name for rows in self.derived for name in (rows.gather, rows.restore))
        return (*self.inputs, *self.targets, *derived)

    def results_of(self, graph: str) -> tuple[str, ...]:
        """The results of "train", "evaluate" or "predict" that users see."""
        return self.model_outputs if graph == "predict" else (LOSS, *self.outputs)

    @property
    def gradients(self) -> dict[str, str]:
        """The output of the train graph with the gradient of each parameter."""
        return {parameter.name: parameter.gradient for parameter in self.parameters}

    def weights(self) -> dict[str, Spec]:
        """Type and shape of the parameters and of the statistics, by name."""
        dtypes = {name: np.dtype(each.dtype) for each in self.updates for name in each.parameters}
        found = {p.name: (dtypes[p.name], p.shape) for p in self.parameters}
        return found | {n: (self.initial[n].dtype, self.initial[n].shape) for n in self.state}

    def tensors(self) -> dict[str, Spec]:
        """Type and shape of every tensor in a checkpoint, by its name there.

        Parameters and statistics have their own names, slots `optimizer/{slot}/{parameter}`.
        """
        return self.weights() | {
            slot_name(slot, name): (update.slot_dtype(slot), shape)
            for update in self.updates
            for slot, shapes in update.slots.items()
            for name, shape in shapes.items()
        }


def describe_left_out(layout: Layout, feeds: Mapping[str, Any] | None = None) -> str:
    """What is left out of the train graph, and of a batch with these feeds, as text."""
    lines = [*layout.notes]
    for rows in layout.derived if feeds is not None else ():
        assert feeds is not None
        share = rows.share({name: np.asarray(feeds[name]) for name in rows.sources})
        lines.append(f"{', '.join(dict.fromkeys(rows.sources))}: {share:.0%} of this batch")
    return "\n".join(lines)


def slot_name(slot: str, parameter: str) -> str:
    """The name of a slot's tensor in a checkpoint."""
    return f"optimizer/{slot}/{parameter}"


def gradient_name(parameter: str) -> str:
    """The name of an accumulated gradient in a checkpoint."""
    return f"gradients/{parameter}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The graphs of a training run, for any engine, and their layout."""

    layout: Layout
    train: ir.Model
    evaluate: ir.Model
    predict: ir.Model
    updates: tuple[ir.Model, ...]  # of layout.updates, in order
    draws: Draws | None = None  # the random numbers that `train` draws; None: none
    memory: EngineMemory = EVERY_VALUE  # of the engine that it was planned for
