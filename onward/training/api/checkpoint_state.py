"""CheckpointState: parameters, optimizer state and properties of a training, in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from onward.checkpoints import file_contents, peer_files
from onward.checkpoints.file_contents import Array, Property
from onward.training.api.training_state import TrainingState


class Parameter:
    """One parameter: `data` and `grad` are copies; assign to `data` to change it."""

    def __init__(self, name: str, state: TrainingState) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        return self._name

    @property
    def data(self) -> Array:
        """The parameter's numbers."""
        return self._state.read(self._name).copy()

    @data.setter
    def data(self, value: Array) -> None:
        self._state.write(self._name, value)

    @property
    def grad(self) -> Array | None:
        """The accumulated gradient; None before a Module, and for frozen parameters."""
        gradients = self._state.gradients
        if gradients is None or self._name not in gradients:
            return None
        return gradients[self._name].copy()

    @property
    def requires_grad(self) -> bool:
        return self._state.requires_grad[self._name]

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters by name; iterating gives pairs of name and Parameter."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        self._known(name)
        self._state.read(name)  # without data, in a nominal checkpoint
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Array) -> None:
        self._known(name)
        self._state.write(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._state.requires_grad

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, Parameter(name, self._state)) for name in self._state.requires_grad)

    def __len__(self) -> int:
        return len(self._state.requires_grad)

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self._state.requires_grad)})"

    def _known(self, name: str) -> None:
        if name not in self._state.requires_grad:
            raise KeyError(f"no parameter {name!r} in the checkpoint")


class Properties:
    """The user's numbers and strings by name; iterating gives pairs."""

    def __init__(self, state: TrainingState) -> None:
        self._values = state.properties

    def __getitem__(self, name: str) -> Property:
        if name not in self._values:
            raise KeyError(f"no property {name!r} in the checkpoint")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, (int, float, str)):
            kind = type(value).__name__
            raise TypeError(f"property {name!r} must be an int, a float or a str, not {kind}")
        self._values[name] = int(value) if isinstance(value, bool) else value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(self._values.items())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({self._values})"


class CheckpointState:
    """The state of a training: `parameters`, `properties`, and the optimizer's state.

    state = CheckpointState.load_checkpoint("checkpoint")
    """

    def __init__(self, state: TrainingState) -> None:
        if not isinstance(state, TrainingState):
            kind = type(state).__name__
            raise TypeError(
                f"a CheckpointState must be made from a file, not from {kind}\n"
                "CheckpointState.load_checkpoint(path)"
            )
        self._state = state
        self._parameters, self._properties = Parameters(state), Properties(state)

    @property
    def parameters(self) -> Parameters:
        """The model's parameters, trainable and frozen."""
        return self._parameters

    @property
    def properties(self) -> Properties:
        """The user's numbers and strings."""
        return self._properties

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a checkpoint of Onward or of onnxruntime.training."""
        reader = peer_files if peer_files.is_peer_file(checkpoint_uri) else file_contents
        return cls(TrainingState(reader.read(checkpoint_uri)))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Write a checkpoint; an existing one is replaced once the new one is complete."""
        file_contents.write(checkpoint_uri, state._state.contents(include_optimizer_state))

    def __getitem__(self, name: str) -> Any:
        """A parameter or a property, as in onnxruntime before 1.18."""
        if name in self.parameters:
            return self.parameters[name]
        return self.properties[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.parameters:
            self.parameters[name] = value
        else:
            self.properties[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self.parameters or name in self.properties
