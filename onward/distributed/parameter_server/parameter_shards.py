"""Divide the parameters of a program over several parameter servers, by ranges of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onward.errors import OptionError
from onward.programs.program import Layout, Program, UpdateLayout
from onward.sessions.training.training_program import TrainingProgram


def split_names(program: TrainingProgram, shards: int) -> list[list[str]]:
    """The parameters in the order of their names, in ranges of about equal numbers of elements.

    Parameters whose optimizer sees them together (such as Muon's) stay together.
    """
    layout = program.layout
    sizes = {parameter.name: parameter.size for parameter in layout.parameters}
    whole = {name: update for update in layout.updates for name in update.parameters
             if not update.flat}  # fmt: skip
    units: list[list[str]] = []
    for name in sorted(sizes):
        together = sorted(whole[name].parameters) if name in whole else [name]
        if name == together[0]:
            units.append(together)
    if not 1 <= shards <= len(units):
        raise OptionError(
            f"{len(units)} parameters cannot be divided over {shards} servers\n"
            f"choose 1 to {len(units)} servers"
        )
    return _cut(units, [sum(sizes[name] for name in unit) for unit in units], shards)


def _cut(units: Sequence[list[str]], sizes: Sequence[int], shards: int) -> list[list[str]]:
    """Cut a list into parts of about equal size, none of them empty."""
    parts: list[list[str]] = []
    left, start = sum(sizes), 0
    for remaining in range(shards, 0, -1):
        end, held = start + 1, sizes[start]
        last = len(units) - (remaining - 1)  # leave a unit for each of the others
        while end < last and (remaining == 1 or held + sizes[end] / 2 <= left / remaining):
            held += sizes[end]
            end += 1
        parts.append([name for unit in units[start:end] for name in unit])
        left, start = left - held, end
    return parts


def shard_program(program: TrainingProgram, shards: int, index: int) -> TrainingProgram:
    """The program of server `index` of several: only its own parameters and their optimizer.

    It makes updates; it cannot compute gradients. The first server holds the statistics.
    """
    if not 0 <= index < shards:
        raise OptionError(f"there is no server {index} of {shards}: they are 0 to {shards - 1}")
    compiled = program.neutral
    if compiled is None:
        raise OptionError(
            "a saved program cannot be divided over servers\ngive one from compile_training"
        )
    if program.settings.clip_norm is not None and shards > 1:
        raise OptionError(
            "clip_norm is of all gradients, and each of several servers sees only its own\n"
            "use one server, or clip_value"
        )
    names = set(split_names(program, shards)[index])
    return TrainingProgram(_restrict(compiled, names, first=index == 0))


def _restrict(program: Program, names: set[str], *, first: bool) -> Program:
    layout = program.layout
    kept = [(graph, update) for graph, update in zip(program.updates, layout.updates)
            if names.intersection(update.parameters)]  # fmt: skip
    state = layout.state if first else {}
    own: Layout = replace(
        layout,
        parameters=tuple(p for p in layout.parameters if p.name in names),
        updates=tuple(_update_of(update, names) for _, update in kept),
        state=state,
        frozen=(),
        initial={n: t for n, t in layout.initial.items() if n in names or n in state},
        model=None,
        settings=replace(layout.settings, accumulate=2),  # no graph of a whole step is built
    )
    return replace(program, layout=own, updates=tuple(graph for graph, _ in kept))


def _update_of(update: UpdateLayout, names: set[str]) -> UpdateLayout:
    """An update of some of its parameters: the graph of a flat one takes vectors of any length."""
    return replace(
        update,
        parameters=tuple(name for name in update.parameters if name in names),
        slots={
            slot: {name: shape for name, shape in shapes.items() if name in names}
            for slot, shapes in update.slots.items()
        },
    )
