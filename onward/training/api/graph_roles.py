"""Roles: what each input and output of a training or evaluation graph is for."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

from onward.errors import InvalidModel
from onward.programs import label_ranges
from onward.programs.label_ranges import LabelRange
from onward.programs.program import Shape
from onward.providers.ort.bound_session import Argument, BoundSession

RESET = "lazy_reset_grad"
BUFFER, SUM, _UPDATED = "_grad.accumulation.buffer", "_grad.accumulation.out", "_updated"
Kinds = Mapping[str, tuple[str, Shape]]  # (type, shape) by name


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The names of a graph's inputs and outputs, by what they are for."""

    inputs: tuple[str, ...]  # what the user feeds, in order
    labels: tuple[LabelRange, ...]  # what those of class labels may hold, where it is known
    parameters: Kinds
    outputs: tuple[str, ...]  # what the user gets, in order
    output_names: tuple[str, ...]  # what the user calls them
    gradients: dict[str, str]  # parameter that is trained: its gradient
    input_gradients: dict[str, str]  # the user's input: its gradient
    state: dict[str, str]  # parameter that the forward changes: its next contents
    loss_dtype: str
    # of a graph that was lowered for a session
    squared: bool = False  # whether it measures its gradients by their squares
    noise_size: bytes | None = None
    noise_by_shape: bool = True


def roles_of(session: BoundSession, known: Container[str]) -> Roles:
    """Tell them apart by name; `known` are the parameters of the checkpoint."""
    metadata = session.metadata
    sums = {n.removesuffix(SUM): n for n in session.outputs if n.endswith(SUM)}
    buffers = {n.removesuffix(BUFFER) for n in session.inputs if n.endswith(BUFFER)}
    if buffers != sums.keys() or bool(buffers) != (RESET in session.inputs):
        raise InvalidModel(
            "not a training model: it gives other gradients back than it takes\n"
            "make it with onward.training.artifacts.generate_artifacts"
        )
    rest = [name for name in session.inputs if name != RESET and not name.endswith(BUFFER)]
    if "onward.inputs" in metadata:
        fed = names_of(metadata, "onward.inputs")
    else:
        fed = [name for name in rest if name not in known]
    held = [name for name in rest if name not in fed]
    state = {name: name + _UPDATED for name in held if name + _UPDATED in session.outputs}
    hidden = {*sums.values(), *state.values()}
    outputs = tuple(name for name in session.outputs if name not in hidden)
    return Roles(
        inputs=tuple(name for name in rest if name in fed),  # in the graph's order: the user's
        labels=tuple(each for each in labels_of(metadata) if each.name in fed),
        parameters={name: kind(session.inputs[name]) for name in held},
        outputs=outputs,
        output_names=outputs,
        gradients={name: output for name, output in sums.items() if name not in fed},
        input_gradients={name: output for name, output in sums.items() if name in fed},
        state=state,
        loss_dtype=str(session.outputs[outputs[0]].dtype or "float32") if outputs else "float32",
    )


def kind(argument: Argument) -> tuple[str, Shape]:
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
    return label_ranges.from_json(metadata.get("onward.labels", "[]"))


def names_of(metadata: Mapping[str, str], key: str) -> list[str]:
    """A list of names in a model's metadata."""
    try:
        names = json.loads(metadata[key])
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidModel(f"the model's {key} is not a list of names: {metadata[key]!r}")
    return names
