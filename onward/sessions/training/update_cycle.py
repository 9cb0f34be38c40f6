"""UpdateCycle: adds up the gradients of micro-batches, then updates the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onward.errors import OptionError
from onward.programs.empty_batches import EMPTY
from onward.programs.program import Array, Layout, gradient_name
from onward.providers.provider import Draw, Results, TrainingExecutable
from onward.sessions.closed import CLOSED
from onward.sessions.training.session_checkpoint import copy_tensors
from onward.sessions.training.session_loss_scale import LossScale
from onward.sessions.training.step_counts import Progress, log
from onward.sessions.training.tensor_views import check_tensors

Hook = Callable[[list[Any]], None]


class UpdateCycle:
    """The batches until an update, and that update, on an engine.

    It gives the engine what it does not know itself: the loss scale, the learning rates of the
    next updates, and the position of random numbers.
    """

    def __init__(self, layout: Layout, engine: TrainingExecutable) -> None:
        self._layout = layout
        self.engine = engine
        self.progress = Progress(layout)
        self.scale = LossScale(layout.settings.loss_scale)
        self.scale.move_to(engine)
        self.hooks: list[Hook] = []  # called between backward and update
        self._seed = layout.settings.seed
        self._micro = 0  # micro-batches whose gradients are accumulated
        self._next_draw: tuple[int, int] | None = None  # that of `draw_as`
        self._only_empty = False  # whether all batches since the last update were empty
        self._rates_left = 0  # number of updates that the engine still has learning rates for

    def move_to(self, engine: TrainingExecutable) -> None:
        """Continue on another engine, with the same tensors."""
        copy_tensors(self._layout, self.engine.store, engine.store, self.has_gradients)
        engine.finite = bool(self.engine.finite)
        self.scale.move_to(engine)
        self.engine = engine
        self._rates_left = 0

    def close(self) -> None:
        """Release the engine."""
        self.engine = CLOSED
        self.hooks.clear()
        self.scale.move_to(None)

    # -- batches -------------------------------------------------------------------------------

    def step(self, feeds: Mapping[str, Any]) -> Results:
        """Train on one (micro-)batch; updates after every `accumulate` batches."""
        settings = self._layout.settings
        whole = settings.accumulate == 1 and settings.skip_nonfinite
        if whole and not self._micro and not self.hooks:
            self._send_rates()
            done = self.engine.step(feeds, self._draw(), self.scale.for_engine)
            if done is None:
                return self._skip_empty(feeds)
            results, finite = done
            self._end_update(finite)
            return results
        computed = self.engine.compute_gradients(
            feeds, self._draw(), self.scale.for_engine, first=not self._micro
        )
        if computed is None:
            return self._skip_empty(feeds)
        self._only_empty = False
        self._micro += 1
        if self._micro >= settings.accumulate:
            self._update()
        return computed

    def forward(self, feeds: Mapping[str, Any]) -> Results:
        """Run the forward pass of a batch; `backward` follows it."""
        results = self.engine.forward(feeds, self._draw())
        if results is None:
            return self._skip_empty(feeds)
        self._only_empty = False
        return results

    def backward(self) -> None:
        """Add the gradients of the last `forward` to the accumulated ones."""
        if self._only_empty:
            return
        self.engine.backward(self.scale.for_engine, first=not self._micro)
        self._micro += 1

    def draw_as(self, step: int, micro: int) -> None:
        """Draw the random numbers of the next batch as micro-batch `micro` of this step does."""
        self._next_draw = step, micro

    def _draw(self) -> Draw:
        """The position of random numbers; an engine that runs ahead counts skipped updates, too."""
        if self._next_draw is not None:
            (step, micro), self._next_draw = self._next_draw, None
            return Draw(self._seed, step, micro)
        ahead = self.engine.lookahead > 1
        step = self.progress.started if ahead else self.progress.steps
        return Draw(self._seed, step, self._micro)

    def _skip_empty(self, feeds: Mapping[str, Any]) -> Results:
        """An empty batch: it has no loss, adds nothing to the gradients and changes nothing."""
        log.warning(EMPTY, self.progress.steps)
        self._only_empty = True
        return self.engine.evaluate(feeds)

    # -- updates -------------------------------------------------------------------------------

    def update(self) -> bool:
        """Update the parameters with the accumulated gradients; return whether all were finite."""
        if not self._micro and self._only_empty:
            return False
        if not self._micro:
            raise OptionError("there are no gradients to update with\ncall step or run_backward")
        return bool(self._update())

    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's own rate."""
        self.progress.set_learning_rate(rate)
        self._rates_left = 0

    def _update(self) -> Any:
        for hook in self.hooks:
            hook(self.engine.store.gradient_buffers())
        if self.hooks:
            self.engine.gradients_changed()
        self._send_rates()
        finite = self.engine.update(self._micro, self.scale.for_engine)
        self._end_update(finite)
        self._micro = 0
        return finite

    def _end_update(self, finite: Any) -> None:
        self.progress.record(finite)
        self._only_empty = False
        self.scale.update(finite)
        self._rates_left -= 1
        if not self._rates_left:
            self.progress.read_flags()

    def _send_rates(self) -> None:
        """Give the engine the learning rates of the next updates, unless it has them."""
        if not self._rates_left:
            rates = self.progress.rates_ahead(self.engine.lookahead)
            self.engine.set_rates(self.progress.steps, rates)
            self._rates_left = self.engine.lookahead

    # -- gradients -----------------------------------------------------------------------------

    @property
    def has_gradients(self) -> bool:
        """Whether accumulated gradients await an update."""
        return self._micro > 0

    def get_gradients(self) -> dict[str, Array]:
        """The accumulated gradients by parameter: the mean over the micro-batches."""
        share = 1.0 / (max(self._micro, 1) * self.scale.value)
        found = {n: self.engine.store.read(gradient_name(n)) for n in self._layout.names}
        return {name: gradient * gradient.dtype.type(share) for name, gradient in found.items()}

    def set_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Replace the accumulated gradients by those of one micro-batch; others are zeros."""
        weights = self._layout.weights()
        known = {name: weights[name] for name in self._layout.names}
        arrays = check_tensors(gradients, known)
        self.clear_gradients()
        for name, array in arrays.items():
            scale = known[name][0].type(self.scale.value)
            self.engine.store.write(gradient_name(name), array * scale)
        self.engine.gradients_changed()
        self._micro, self._only_empty = 1, False

    def clear_gradients(self) -> None:
        """Discard the accumulated gradients."""
        self.engine.store.clear_gradients()
        self.engine.finite = True
        self._micro, self._only_empty = 0, False

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The progress of training, without tensors."""
        return {
            "updates": self.progress.state(),
            "scale": self.scale.state(),
            "seed": self._seed,
            "micro": self._micro,
            "finite": bool(self.engine.finite),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.progress.restore(state["updates"])
        self.scale.restore(state["scale"])
        self._seed = state["seed"]
        self.engine.finite = state["finite"]
        self._micro, self._only_empty, self._rates_left = state["micro"], False, 0
