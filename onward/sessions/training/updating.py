"""Updates of a session: gradients gathered, measured, and given to the update graphs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.optimizers.checks import plain_number
from onward.optimizers.clip import ClipByNorm
from onward.optimizers.rates import LearningRates
from onward.optimizers.schedules import schedule_from_dict
from onward.sessions.training.engine import Engine
from onward.sessions.training.finite import NOT_FINITE, is_finite
from onward.sessions.training.opening import Opening
from onward.sessions.training.program import UPDATE, Array, TrainingProgram
from onward.sessions.training.state import Room, State, aligned

_PIECE = 1 << 16  # elements that are squared at a time

log = logging.getLogger("onward")


class Updates:
    """The update graphs, bound to the state."""

    def __init__(self, program: TrainingProgram, state: State, opening: Opening) -> None:
        settings = program.settings
        self._state, self._opening = state, opening
        limit = settings.get("clip_norm")
        self._clip = None if limit is None else ClipByNorm(max_norm=limit)
        self._scaled: bool = settings["scaled"]
        given = settings.get("schedule")
        self._schedule = None if given is None else schedule_from_dict(given)
        self._gradients = {p.name: p.gradient for p in program.parameters}
        rates = [update.learning_rate for update in program.updates]  # a program of 0.1 has no more
        self._rates = LearningRates(settings.get("learning_rate", rates[-1]), rates)
        self._engines: list[Engine] | None = None
        self._joined: Engine | None = None
        self._lrs = [np.zeros((), update.dtype) for update in program.updates]
        self._count = np.zeros((), np.int64)
        self._factors = [np.ones((), update.dtype) for update in program.updates]
        self._spare: list[Array] | None = None  # where later micro-batches' gradients go first
        self._aimed: dict[int, bool] = {}
        self._share = 1.0  # what one micro-batch's gradients count
        self._norm: float | None = 0.0  # None: not measured yet
        self.steps, self.skipped = 0, 0

    # -- gradients -----------------------------------------------------------------------------

    def aim(self, engine: Engine, first: bool) -> None:
        """Have the gradients written where they belong: a first micro-batch's in their place."""
        if self._aimed.get(id(engine)) == first:
            return
        for room, vector in zip(self._state.rooms, self._targets(first)):
            for name in room.update.parameters:
                engine.bind_output(self._gradients[name], room.view(vector, name))
        self._aimed[id(engine)] = first

    def add(self, first: bool) -> None:
        """Add a later micro-batch's gradients to those of the ones before."""
        if not first:
            for room, spare in zip(self._state.rooms, self._targets(first)):
                np.add(room.gradients, spare, out=room.gradients)

    def is_finite(self, measure: Array, first: bool) -> bool:
        """Whether a micro-batch's gradients are: 1e38 is, four of it are not in float32."""
        return math.isfinite(measure) or all(map(is_finite, self._targets(first)))

    def last_norm(self) -> float:
        """How long the gradients of the last update were, before clipping."""
        if self._norm is None:
            self._norm = math.sqrt(_squared(self._targets(True))) * self._share
        return self._norm

    def _targets(self, first: bool) -> list[Array]:
        """The vectors that a micro-batch's gradients are written to."""
        if first:
            return [room.gradients for room in self._state.rooms]
        if self._spare is None:
            rooms = self._state.rooms
            self._spare = [aligned(room.gradients.size, room.gradients.dtype) for room in rooms]
        return self._spare

    # -- the update ----------------------------------------------------------------------------

    def begin(self, micro: int, scale: float) -> float:
        """Set the scalars of the next update; what its gradients are multiplied by."""
        self._norm = None
        self._share = 1.0 / (micro * scale)
        self._count[...] = self.steps + 1
        for tensor, factor, rate in zip(self._lrs, self._factors, self.learning_rates()):
            tensor[...], factor[...] = rate, self._share
        return self._share

    def run(self, measure: Array, micro: int, scale: float, joined: bool) -> None:
        """One update of every parameter; `joined`: after gradients of the graph it is joined to."""
        factor = self.begin(micro, scale)
        if self._clip is not None:
            if micro == 1:
                self._measured(measure)
            factor *= self._clip.scale(self.last_norm())
        if factor != 1.0 and not self._scaled:  # more micro-batches than the program knows of
            for room in self._state.rooms:
                np.multiply(room.gradients, room.gradients.dtype.type(factor), out=room.gradients)
        for tensor in self._factors:
            tensor[...] = factor
        if self._joined is not None and joined:
            self._joined.run()
        else:
            for engine in self._apart():
                engine.run()
        self.steps += 1

    def end(self, measure: Array) -> None:
        """An update was made in one run with its gradients."""
        if self._clip is not None:
            self._measured(measure)
        self.steps += 1

    def skip(self) -> None:
        """Leave an update out because its gradients are not finite."""
        self.skipped += 1
        log.warning(NOT_FINITE, self.steps)

    def _measured(self, measure: Array) -> None:
        """Take the norm from the sum of squares, unless that is too much for float32."""
        squares = float(measure)
        if math.isfinite(squares):
            self._norm = math.sqrt(squares) * self._share

    def _apart(self) -> list[Engine]:
        """Each update graph in a session of its own."""
        if self._engines is None:
            self._engines = [self._bound(i, room) for i, room in enumerate(self._state.rooms)]
        return self._engines

    def learning_rates(self) -> list[float]:
        """Each update's at this step."""
        return [self._scheduled(rate) for rate in self._rates.updates]

    @property
    def learning_rate(self) -> float:
        """The optimizer's own at this step."""
        return self._scheduled(self._rates.own)

    def _scheduled(self, rate: float) -> float:
        return rate if self._schedule is None else self._schedule.rate(self.steps, rate)

    def set_learning_rate(self, rate: float) -> None:
        number = plain_number(rate)
        if number is None or number < 0:
            raise OptionError(
                f"a learning rate is a number from 0 up, not {rate!r}\ngive one, such as 0.001"
            )
        self._rates.set(number)

    def _bound(self, i: int, room: Room) -> Engine:
        """An update graph whose outputs take the place of its inputs."""
        bound = self._opening.update(room.update.bound)
        engine = self._opening.any(room.update.graph) if bound is None else bound
        self._bind(engine, i, _pairs(room, bound=bound is not None))
        return engine

    def _bind(
        self, engine: Engine, i: int, pairs: Pairs, before: str = "", read: bool = False
    ) -> None:
        """Bind an update's inputs and, unless they are only `read`, its outputs in their places."""
        taken = {argument.name for argument in engine.arguments()}
        engine.bind_input(f"{before}learning_rate", self._lrs[i])
        engine.bind_input(f"{before}step", self._count)
        if self._scaled:
            engine.bind_input(f"{before}gradient_scale", self._factors[i])
        for source, target, array in pairs:
            if before + source in taken:
                engine.bind_input(before + source, array)
            if target is not None and not read:
                engine.bind_output(before + target, array)

    def join(self, train: Engine, update: Engine) -> None:
        """Run as a branch of one graph with `train`, from now on."""
        for i, room in enumerate(self._state.rooms):
            pairs = _pairs(room, bound=True)
            self._bind(train, i, pairs, UPDATE.format(i), read=True)
            self._bind(update, i, pairs, UPDATE.format(i))
        self._joined = update

    def follow(self, step: Engine) -> None:
        """Be part of a graph that computes gradients and then updates, all in one run."""
        for i, room in enumerate(self._state.rooms):
            self._bind(step, i, _pairs(room, bound=True), UPDATE.format(i))
        self.aim(step, first=True)

    # -- keeping -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "skipped": self.skipped, **self._rates.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.steps, self.skipped = int(state["steps"]), int(state["skipped"])
        self._rates.restore(state)


Pairs = list[tuple[str, str | None, Array]]  # input, the output that takes its place, the tensor


def _pairs(room: Room, bound: bool = False) -> Pairs:
    """The tensors of an update graph; what it is bound to beside the state, if it is."""
    pairs: Pairs = []
    if room.update.flat:
        vectors = {"parameters": room.parameters, **room.slots, **(room.scratch if bound else {})}
        pairs += [(name, f"new_{name}", vector) for name, vector in vectors.items()]
        pairs.append(("gradients", None, room.gradients))
        if bound:
            pairs += [(name, None, matrix) for name, matrix in room.matrices.items()]
        return pairs
    for name in room.update.parameters:
        pairs += [
            (name, f"{name}.new", room.view(room.parameters, name)),
            (f"{name}.gradient", None, room.view(room.gradients, name)),
        ]
    for slot, tensors in room.slots.items():
        pairs += [(f"{name}.{slot}", f"{name}.{slot}.new", t) for name, t in tensors.items()]
    return pairs


def _squared(vectors: Sequence[Array]) -> float:
    """The sum of squares, in float64 and without BLAS: its threads would fight onnxruntime's."""
    total = 0.0
    for vector in vectors:
        for start in range(0, vector.size, _PIECE):
            piece = vector[start : start + _PIECE].astype(np.float64)
            total += float(np.add.reduce(np.square(piece, out=piece)))
    return total
