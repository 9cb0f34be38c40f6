"""Roles: what each input and output of a training or evaluation graph is for."""

from __future__ import annotations

import functools
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

from onward.errors import InvalidModel
from onward.programs import ranges
from onward.programs.ranges import LabelRange
from onward.providers.ort.bound import Argument, BoundSession

RESET = "lazy_reset_grad"
_BUFFER, _SUM = "_grad.accumulation.buffer", "_grad.accumulation.out"
_UPDATED = "_updated"


@dataclass(frozen=True)
class Roles:
    """The names of a graph's inputs and outputs, by what they are for."""

    inputs: list[str]  # what the user feeds, in order
    outputs: list[str]  # what the user gets, in order
    parameters: list[str]
    buffers: dict[str, str]  # parameter or input: the input that takes its gradient so far
    sums: dict[str, str]  # ... : the output that gives it back
    updated: dict[str, str]  # state that the forward changes: the output that gives it anew
    labels: list[LabelRange]  # what the user's inputs of class labels may hold, where it is known

    @functools.cached_property
    def trainable(self) -> list[str]:
        """The parameters that have gradients."""
        return [name for name in self.buffers if name not in self.inputs]

    @functools.cached_property
    def fed_with_gradients(self) -> list[str]:
        """The user's inputs that have gradients."""
        return [name for name in self.inputs if name in self.buffers]


def roles(session: BoundSession, known: Container[str]) -> Roles:
    """Tell them apart by name; `known` are the parameters of the checkpoint."""
    metadata = session.metadata
    buffers = {n.removesuffix(_BUFFER): n for n in session.inputs if n.endswith(_BUFFER)}
    sums = {n.removesuffix(_SUM): n for n in session.outputs if n.endswith(_SUM)}
    apart = {RESET, *buffers.values()}
    rest = [name for name in session.inputs if name not in apart]
    if "onward.inputs" in metadata:
        fed = names_of(metadata, "onward.inputs")
    else:
        fed = [name for name in rest if name not in known]
    updated = {
        name: name + _UPDATED
        for name in rest
        if name not in fed and name + _UPDATED in session.outputs
    }
    hidden = {*sums.values(), *updated.values()}
    found = Roles(
        inputs=[name for name in rest if name in fed],  # in the graph's order, which is the user's
        outputs=[name for name in session.outputs if name not in hidden],
        parameters=[name for name in rest if name not in fed],
        buffers=buffers,
        sums=sums,
        updated=updated,
        labels=[each for each in labels_of(metadata) if each.name in fed],
    )
    if buffers.keys() != sums.keys() or bool(buffers) != (RESET in session.inputs):
        raise InvalidModel(
            "not a training model: it gives other gradients back than it takes\n"
            "make it with onward.training.artifacts.generate_artifacts"
        )
    return found


def kind(argument: Argument) -> tuple[str, tuple[int, ...]]:
    """A parameter's type and shape, which a graph says in full."""
    dtype = argument.dtype
    sizes = tuple(size for size in argument.shape if isinstance(size, int))
    if dtype is None or len(sizes) != len(argument.shape):
        raise InvalidModel(
            f"parameter {argument.name!r} is {argument}: a parameter has a known type and shape\n"
            "make the model with onward.training.artifacts.generate_artifacts"
        )
    return dtype.name, sizes


def labels_of(metadata: Mapping[str, str]) -> tuple[LabelRange, ...]:
    """What inputs of class labels may hold, as a model says."""
    return ranges.from_json(metadata.get("onward.labels", "[]"))


def names_of(metadata: Mapping[str, str], key: str) -> list[str]:
    """A list of names in a model's metadata."""
    try:
        names = json.loads(metadata[key])
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidModel(f"the model's {key} is not a list of names: {metadata[key]!r}")
    return names
