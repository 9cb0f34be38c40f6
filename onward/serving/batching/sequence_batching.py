"""State that is kept between the requests of a sequence, for recurrent models.

Requests of one sequence run strictly in order, one at a time; those of different sequences are
batched together. Pure: the time is an argument.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from onward.errors import OptionError, RequestInvalid, ServerOverloaded
from onward.message_text import suggest_names
from onward.serving.instance import Instance
from onward.serving.requests import Array, SequencePart, TensorSpec
from onward.serving.settings import ModelSettings, SequenceState
from onward.serving.tensor_data import DATATYPES

MAX_SEQUENCES = 16384  # at the same time; state of more would fill the memory


class SequencedWork(Protocol):
    """A request that is part of a sequence."""

    feeds: dict[str, Array]
    deadline: float

    @property
    def part(self) -> SequencePart | None: ...


W = TypeVar("W", bound=SequencedWork)


@dataclass(slots=True)
class _Sequence(Generic[W]):
    states: dict[str, Array] | None = None  # by the names of state inputs; None: not started
    last_used: float = 0.0
    is_busy: bool = False  # one of its requests waits in the queue, or runs
    held: deque[W] = field(default_factory=deque)


class SequenceBatching(Generic[W]):
    """The sequences of one model."""

    def __init__(
        self, model: str, instance: Instance, settings: ModelSettings, axes: Mapping[str, int]
    ) -> None:
        inputs = {spec.name: spec for spec in instance.inputs}
        outputs = {spec.name: spec for spec in instance.outputs}
        self._model, self._inputs, self._axes = model, inputs, axes
        self._idle_timeout = settings.sequence_idle_timeout
        self._states = [
            (each, _known(each.input, inputs, model)) for each in settings.sequence_states
        ]
        for each in settings.sequence_states:
            _known(each.output, outputs, model)
        self._controls = [
            (_known(name, inputs, model), kind) for name, kind in settings.sequence_controls.items()
        ]
        self._sequences: OrderedDict[int | str, _Sequence[W]] = OrderedDict()  # oldest use first
        self.held_count = 0
        self.state_outputs = {each.output: each.input for each, _ in self._states}

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def next_timeout(self) -> float:
        """When the longest unused sequence is forgotten; infinite: there is none."""
        for sequence in self._sequences.values():
            return sequence.last_used + self._idle_timeout
        return math.inf

    @property
    def next_deadline(self) -> float:
        """When `take_expired` has something to take; infinite: never."""
        return min((work.deadline for work in self._held()), default=math.inf)

    def enter(self, work: W, now: float) -> bool:
        """Take part in a sequence; False: it is held until the requests before it have left."""
        part = self._part(work)
        self.forget_idle(now)
        sequence = self._sequences.get(part.id)
        if sequence is None:
            if not part.is_start:
                raise self._not_started(part)
            if len(self._sequences) >= MAX_SEQUENCES:
                raise ServerOverloaded(
                    f"model {self._model!r} has {MAX_SEQUENCES} open sequences", retry_after=1.0
                )
            sequence = self._sequences[part.id] = _Sequence()
        sequence.last_used = now
        self._sequences.move_to_end(part.id)
        if sequence.is_busy:
            sequence.held.append(work)
            self.held_count += 1
            return False
        sequence.is_busy = True
        return True

    def feeds(self, work: W, rows: int) -> dict[str, Array]:
        """The state and control inputs of a request whose turn it is."""
        part = self._part(work)
        sequence = self._sequences[part.id]
        if part.is_start:
            sizes = self._named_sizes(work.feeds)
            sequence.states = {
                state.input: self._initial(state, spec, rows, sizes) for state, spec in self._states
            }
        if sequence.states is None:
            raise self._not_started(part)
        feeds = dict(sequence.states)
        for name, array in feeds.items():
            if name in self._axes and array.shape[self._axes[name]] != rows:
                raise RequestInvalid(
                    f"sequence {part.id} of model {self._model!r} started with "
                    f"{array.shape[self._axes[name]]} rows, and this request has {rows}"
                )
        for spec, kind in self._controls:
            feeds[spec.name] = self._control(spec, kind, part, rows)
        return feeds

    def leave(self, work: W, states: dict[str, Array] | None, now: float) -> W | None:
        """A request was answered with these states, or dropped: the next one of its sequence."""
        part = self._part(work)
        sequence = self._sequences[part.id]
        sequence.last_used = now
        self._sequences.move_to_end(part.id)
        if states is not None:
            sequence.states = states
        elif part.is_start:
            sequence.states = None
        if part.is_end:
            sequence.states = None
        if sequence.held:
            self.held_count -= 1
            return sequence.held.popleft()
        sequence.is_busy = False
        if sequence.states is None:
            del self._sequences[part.id]
        return None

    def remove(self, work: W) -> bool:
        """Drop a request that is held; False if it is not."""
        part = self._part(work)
        sequence = self._sequences.get(part.id)
        if sequence is None or work not in sequence.held:
            return False
        sequence.held.remove(work)
        self.held_count -= 1
        return True

    def take_held(self) -> list[W]:
        """Drop all requests that are held."""
        works = self._held()
        for sequence in self._sequences.values():
            sequence.held.clear()
        self.held_count = 0
        return works

    def take_expired(self, now: float) -> list[W]:
        """Drop the held requests whose deadline has passed."""
        expired = [work for work in self._held() if work.deadline <= now]
        for work in expired:
            self.remove(work)
        return expired

    def forget_idle(self, now: float) -> None:
        """Free the state of sequences that have been silent for too long."""
        while self._sequences:
            name, sequence = next(iter(self._sequences.items()))
            if sequence.last_used + self._idle_timeout > now:
                return
            if sequence.is_busy:
                sequence.last_used = now
                self._sequences.move_to_end(name)
                continue
            del self._sequences[name]

    def _held(self) -> list[W]:
        if not self.held_count:
            return []
        return [work for sequence in self._sequences.values() for work in sequence.held]

    def _part(self, work: W) -> SequencePart:
        if work.part is None or work.part.id in (0, ""):
            raise RequestInvalid(
                f"inference request to model {self._model!r} must specify a non-zero or non-empty "
                "correlation ID"
            )
        return work.part

    def _not_started(self, part: SequencePart) -> RequestInvalid:
        return RequestInvalid(
            f"inference request for sequence {part.id} to model {self._model!r} must specify the "
            "START flag on the first request of the sequence"
        )

    def _named_sizes(self, feeds: Mapping[str, Array]) -> dict[str, int]:
        """The sizes of the named axes of a request's inputs."""
        return {
            axis: size
            for name, array in feeds.items()
            for axis, size in zip(self._inputs[name].axes, array.shape)
            if axis
        }

    def _initial(
        self, state: SequenceState, spec: TensorSpec, rows: int, sizes: Mapping[str, int]
    ) -> Array:
        """A new state; a free axis that no input has is empty, such as that of a cache of keys."""
        batch_axis = self._axes.get(spec.name)
        names = spec.axes or ("",) * len(spec.shape)
        without_name = 0 if self._axes else 1
        shape = [
            rows if axis == batch_axis
            else size if size != -1
            else sizes.get(name, 0 if name else without_name)
            for axis, (size, name) in enumerate(zip(spec.shape, names))
        ]  # fmt: skip
        return np.full(shape, state.initial, DATATYPES[spec.datatype])

    def _control(self, spec: TensorSpec, kind: str, part: SequencePart, rows: int) -> Array:
        batch_axis = self._axes.get(spec.name)
        shape = [
            rows if axis == batch_axis else 1 if size == -1 else size
            for axis, size in enumerate(spec.shape)
        ]
        dtype = DATATYPES[spec.datatype]
        if kind != "correlation_id":
            value = {"start": part.is_start, "end": part.is_end, "ready": True}[kind]
            return np.full(shape, value, dtype)
        if dtype == np.object_:
            return np.full(shape, str(part.id), dtype)
        try:
            return np.full(shape, int(part.id), dtype)
        except (ValueError, OverflowError):
            raise RequestInvalid(
                f"the correlation ID {part.id!r} is not {spec.datatype}, which model "
                f"{self._model!r} takes"
            ) from None


def _known(name: str, specs: Mapping[str, TensorSpec], model: str) -> TensorSpec:
    if name not in specs:
        hint = suggest_names(name, specs, "the model has")
        raise OptionError(f"sequence settings of model {model!r} name {name!r}\n{hint}")
    return specs[name]
