"""Roles: the names of a training or evaluation graph's inputs and outputs, by purpose."""

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
TypesAndShapes = Mapping[str, tuple[str, Shape]]  # (type, shape) by name


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The names of a graph's inputs and outputs, by purpose."""

    inputs: tuple[str, ...]  # the user's feeds, in order
    labels: tuple[LabelRange, ...]  # ranges of class labels, where known
    parameters: TypesAndShapes
    outputs: tuple[str, ...]  # the user's results, in order
    output_names: tuple[str, ...]  # their names for the user
    gradients: dict[str, str]  # trained parameter: its gradient
    input_gradients: dict[str, str]  # the user's input: its gradient
    state: dict[str, str]  # parameter that the forward changes: its next contents
    loss_dtype: str
    # only of a graph that was lowered for a session:
    squared: bool = False  # whether it returns the sum of squares of its gradients
    noise_size: bytes | None = None
    noise_by_shape: bool = True


def find_roles(session: BoundSession, known: Container[str]) -> Roles:
    """Find the roles by name and metadata; `known` are the parameters of the checkpoint."""
    metadata = session.metadata
    sums = {n.removesuffix(SUM): n for n in session.outputs if n.endswith(SUM)}
    buffers = {n.removesuffix(BUFFER) for n in session.inputs if n.endswith(BUFFER)}
    if buffers != sums.keys() or bool(buffers) != (RESET in session.inputs):
        raise InvalidModel(
            "not a training model: its gradient outputs do not match its gradient buffers\n"
            "make it with onward.training.artifacts.generate_artifacts"
        )
    rest = [name for name in session.inputs if name != RESET and not name.endswith(BUFFER)]
    if "onward.inputs" in metadata:
        fed = read_names(metadata, "onward.inputs")
    else:
        fed = [name for name in rest if name not in known]
    held = [name for name in rest if name not in fed]
    state = {name: name + _UPDATED for name in held if name + _UPDATED in session.outputs}
    hidden = {*sums.values(), *state.values()}
    outputs = tuple(name for name in session.outputs if name not in hidden)
    return Roles(
        inputs=tuple(name for name in rest if name in fed),  # in the graph's order: the user's
        labels=tuple(each for each in read_label_ranges(metadata) if each.name in fed),
        parameters={name: type_and_shape(session.inputs[name]) for name in held},
        outputs=outputs,
        output_names=outputs,
        gradients={name: output for name, output in sums.items() if name not in fed},
        input_gradients={name: output for name, output in sums.items() if name in fed},
        state=state,
        loss_dtype=str(session.outputs[outputs[0]].dtype or "float32") if outputs else "float32",
    )


def type_and_shape(argument: Argument) -> tuple[str, Shape]:
    """A parameter's type and shape, which must be known."""
    dtype = argument.dtype
    sizes = tuple(size for size in argument.shape if isinstance(size, int))
    if dtype is None or len(sizes) != len(argument.shape):
        raise InvalidModel(
            f"parameter {argument.name!r} is {argument}: a parameter has a known type and shape\n"
            "make the model with onward.training.artifacts.generate_artifacts"
        )
    return dtype.name, sizes


def read_label_ranges(metadata: Mapping[str, str]) -> tuple[LabelRange, ...]:
    """The ranges of class labels in a model's metadata."""
    return label_ranges.from_json(metadata.get("onward.labels", "[]"))


def read_names(metadata: Mapping[str, str], key: str) -> list[str]:
    """A list of names in a model's metadata."""
    try:
        names = json.loads(metadata[key])
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidModel(f"the model's {key} is not a list of names: {metadata[key]!r}")
    return names
