"""memory_report: the memory of a training step, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.formatting import percent, show_bytes, show_count
from onward.passes.composites import inline_calls
from onward.passes.memory_functions import is_barrier, is_on_host
from onward.passes.pipelines import TRAINING
from onward.programs.memory.forward_backward import divide_train_graph, storages
from onward.programs.memory.repeat_nodes import without_copies
from onward.programs.memory.schedule import make_schedule, peak_of
from onward.programs.memory.train_sizes import (
    COPY_OF,
    measure_train_graph,
    node_key,
    sizes_of_feeds,
)
from onward.programs.program import LOSS, Program


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """The activations of one train graph."""

    peak: int  # alive at once
    waiting: int  # kept from the forward pass for the backward pass


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """The bytes that a training step takes, with and without its Memory option.

    Attributes:
        parameters: trained, frozen and running statistics
        gradients: of all parameters
        optimizer: slots, such as the moments of Adam
        activations: with the option
        unlimited: the activations if nothing was computed again
        flops: of forward and backward pass
        repeated_flops: of these, what is computed again
        sizes: of dynamic dimensions
        assumed: those of them that were not given
        unknown: values whose size only a run shows, not counted
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: ActivationBytes
    unlimited: ActivationBytes
    flops: float
    repeated_flops: float
    sizes: Mapping[str, int]
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def peak(self) -> int:
        """All bytes that are alive at once in a step."""
        return self.parameters + self.gradients + self.optimizer + self.activations.peak

    @property
    def unlimited_peak(self) -> int:
        """The same if nothing was computed again."""
        return self.peak - self.activations.peak + self.unlimited.peak

    def __str__(self) -> str:
        fixed = ("parameters", "gradients", "optimizer")
        rows = [(name, getattr(self, name), getattr(self, name)) for name in fixed]
        rows += [
            ("activations", self.unlimited.peak, self.activations.peak),
            ("  wait for the backward", self.unlimited.waiting, self.activations.waiting),
            ("peak", self.unlimited_peak, self.peak),
        ]
        lines = [f"{'':24}{'without':>12}{'with':>12}"]
        lines += [f"{name:24}{show_bytes(a):>12}{show_bytes(b):>12}" for name, a, b in rows]
        share = percent(self.repeated_flops / self.flops) if self.flops else "0 %"
        lines.append(f"computed again: {show_count(self.repeated_flops)}FLOP of a step, {share}")
        if self.assumed:
            taken = ", ".join(f"{name}={self.sizes[name]}" for name in self.assumed)
            lines.append(f"sizes that were assumed: {taken}")
        if self.unknown:
            lines.append(f"not counted: {len(self.unknown)} values of unknown size")
        return "\n".join(lines)


class CompiledProgram(Protocol):
    """What compile_training returns."""

    @property
    def neutral(self) -> Program | None: ...


def memory_report(
    given: Program | CompiledProgram,
    feeds: Mapping[str, Any] | None = None,
    *,
    inlined: bool = False,
) -> MemoryReport:
    """Count the memory of a program's step from its graph.

    `feeds` are feeds, or sizes of dynamic dimensions ({"batch": 32}). A program that was compiled
    for `providers` is counted as the first of them runs it; `inlined`: for any other engine without
    kernels for calls of domain `onward`.
    """
    program = given if isinstance(given, Program) else given.neutral
    if program is None:
        raise OptionError(
            "a program that was saved has no graphs to report on\n"
            "report on the result of compile_training, before it is saved"
        )
    sizes = sizes_of_feeds(program.train.graph.inputs, feeds or {})
    after, before = (
        _engine_graph(model, program, inlined)
        for model in (program.train, without_copies(program.train))
    )
    layout = program.layout
    measured = measure_train_graph(after, sizes, program.memory)
    repeated = [node for node in after.graph if COPY_OF in node.metadata_props]
    held = layout.tensors()
    left_out = _tables_without_gradient(program)
    nbytes = {name: dtype.itemsize * int(np.prod(shape)) for name, (dtype, shape) in held.items()}
    weights = sum(size for name, size in nbytes.items() if name in layout.weights())
    frozen = sum(layout.initial[name].nbytes for name in layout.frozen if name in layout.initial)
    return MemoryReport(
        parameters=weights + frozen,
        gradients=sum(nbytes[name] for name in layout.names if name not in left_out),
        optimizer=sum(nbytes.values()) - weights,
        activations=_activations(after, program, sizes),
        unlimited=_activations(before, program, sizes),
        flops=sum(cost.flops for cost in measured.costs.values()),
        repeated_flops=sum(measured.cost_of(node).flops for node in repeated),
        sizes=measured.sizes,
        assumed=measured.assumed,
        unknown=measured.unknown,
    )


def _tables_without_gradient(program: Program) -> set[str]:
    """Tables of which a step computes and updates only rows."""
    layout = program.layout
    if not program.memory.updates_rows or layout.settings.accumulate > 1 or layout.sums:
        return set()
    return {name for each in layout.updates if each.sparse for name in each.parameters}


def _engine_graph(train: ir.Model, program: Program, inlined: bool) -> ir.Model:
    """A copy of a train graph as the engine runs it."""
    model = train.clone()
    if program.memory.lower is not None:
        return program.memory.lower(model)
    return TRAINING(inline_calls(model, is_barrier)) if inlined else model


def _activations(train: ir.Model, program: Program, sizes: Mapping[str, int]) -> ActivationBytes:
    layout = program.layout
    outputs = [LOSS, *layout.outputs, *layout.state.values()]
    measured, parts = (
        measure_train_graph(train, sizes, program.memory),
        divide_train_graph(train.graph, outputs),
    )
    everything = storages(parts.place)
    steps = make_schedule(parts, everything)
    elsewhere = [parameter.gradient for parameter in layout.parameters]
    elsewhere += [node_key(node) for node in train.graph if is_on_host(node)]
    return ActivationBytes(
        peak=peak_of(steps, measured.bytes_of, elsewhere),
        waiting=sum(
            measured.bytes_of(v) for v in storages(parts.waiting) if v.name not in elsewhere
        ),
    )
