"""TrainingSession: hold a model, its optimizer and their state, and train. It has no loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from onward.checkpoints import tensor_files
from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.programs.empty_batches import EMPTY
from onward.programs.program import AVERAGE, LOSS, Array, gradient_name, slot_name
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.providers.provider import Draw, Results
from onward.sessions.closed import CLOSED
from onward.sessions.training import session_checkpoint
from onward.sessions.training.call_lock import in_turn
from onward.sessions.training.open_program import open_training, to_program
from onward.sessions.training.session_loss_scale import LossScale
from onward.sessions.training.step_counts import Progress, log
from onward.sessions.training.tensor_views import TensorView, check_tensors
from onward.sessions.training.training_program import TrainingProgram

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.losses.loss import Loss
    from onward.optimizers.optimizer import Optimizer
    from onward.programs import export as exporting
    from onward.programs.options import TrainingOptions
    from onward.providers.provider import TrainingExecutable
else:  # what makes graphs; a saved program needs none of it
    exporting = LazyModule("onward.programs.export")

Hook = Callable[[list[Any]], None]


class TrainingSession:
    """A model that learns.

    `model` is a model with a `loss` and an `optimizer`, or a program that was compiled from them
    (`compile_training`, or the folder that it was saved to). `step` computes the loss and its
    gradients and updates the parameters, where they lie. Threads may share a session: their calls
    take turns.
    """

    def __init__(
        self,
        model: Source | TrainingProgram,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        options: TrainingOptions | Mapping[str, Any] | None = None,
        *,
        sess_options: Any = None,
        providers: Asked = None,
    ) -> None:
        self._turn = threading.RLock()
        self._program = to_program(model, loss, optimizer, options)
        self._layout = self._program.layout
        quiet = SessionOptions(log_severity_level=4)  # what fails is raised, not also printed
        chosen = quiet if sess_options is None else SessionOptions.of(sess_options)
        self._engine: TrainingExecutable = open_training(self._program, chosen, providers)
        settings = self._layout.settings
        self._progress = Progress(self._layout)
        self._scale = LossScale(settings.loss_scale)
        self._seed = settings.seed
        self._hooks: list[Hook] = []
        self._micro = 0  # micro-batches whose gradients wait for an update
        self._left_out = False  # whether batches since the last update were empty
        self._rates_left = 0  # for how many updates the engine still has learning rates
        self.properties: dict[str, Any] = {}  # yours: they are saved with every checkpoint

    # -- closing -------------------------------------------------------------------------------

    @in_turn
    def close(self) -> None:
        """Release the engine and its tensors, after the calls of other threads.

        Training, evaluating and saving after it raise SessionClosed; closing twice is fine.
        """
        self._engine = CLOSED
        self._hooks.clear()

    def __enter__(self) -> TrainingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- training ------------------------------------------------------------------------------

    @in_turn
    def step(self, feeds: Mapping[str, Any]) -> Results:
        """One (micro-)batch: its loss and outputs; the parameters are updated when it is time."""
        settings = self._layout.settings
        whole = settings.accumulate == 1 and settings.skip_nonfinite
        if whole and not self._micro and not self._hooks:
            self._send_rates()
            done = self._engine.step(feeds, self._draw(), self._scale.value)
            if done is None:
                return self._leave_out(feeds)
            results, finite = done
            self._end_update(finite)
            return results
        computed = self._engine.compute_gradients(
            feeds, self._draw(), self._scale.value, first=not self._micro
        )
        if computed is None:
            return self._leave_out(feeds)
        self._left_out = False
        self._micro += 1
        if self._micro >= settings.accumulate:
            self._update()
        return computed

    def _draw(self) -> Draw:
        """Where random numbers are drawn; an engine that runs ahead counts skipped updates too."""
        ahead = self._engine.lookahead > 1
        step = self._progress.started if ahead else self._progress.steps
        return Draw(self._seed, step, self._micro)

    def _leave_out(self, feeds: Mapping[str, Any]) -> Results:
        """An empty batch: it has no loss, adds nothing to the gradients and changes nothing."""
        log.warning(EMPTY, self.steps)
        self._left_out = True
        return self.evaluate(feeds)

    @in_turn
    def update_weights(self) -> bool:
        """Update the parameters with the gradients at hand; whether they were fit for it."""
        if not self._micro and self._left_out:
            return False
        if not self._micro:
            raise OptionError("there are no gradients to update with\ncall step or run_backward")
        return bool(self._update())

    def _update(self) -> Any:
        for hook in self._hooks:
            hook(self._engine.store.gradient_buffers())
        if self._hooks:
            self._engine.gradients_changed()
        self._send_rates()
        finite = self._engine.update(self._micro, self._scale.value)
        self._end_update(finite)
        self._micro = 0
        return finite

    def _end_update(self, finite: Any) -> None:
        self._progress.record(finite)
        self._left_out = False
        if self._scale.is_dynamic:
            self._scale.update(bool(finite))
        self._rates_left -= 1
        if not self._rates_left:
            self._progress.settle()

    def _send_rates(self) -> None:
        """Tell the engine the learning rates of the next updates, unless it has them."""
        if not self._rates_left:
            rates = self._progress.rates_ahead(self._engine.lookahead)
            self._engine.set_rates(self._progress.steps, rates)
            self._rates_left = self._engine.lookahead

    @property
    @in_turn
    def gradient_norm(self) -> float:
        """How long the last gradients are, all together, before clipping."""
        return self._engine.gradient_norm()

    # -- the same, in parts --------------------------------------------------------------------

    @in_turn
    def run_forward(self, feeds: Mapping[str, Any]) -> Results:
        """The loss and the outputs of a batch, in training mode; `run_backward` goes on from it."""
        results = self._engine.forward(feeds, self._draw())
        if results is None:
            return self._leave_out(feeds)
        self._left_out = False
        return results

    @in_turn
    def run_backward(self) -> None:
        """The gradients of the last `run_forward`, added to those that wait for an update."""
        if self._left_out:
            return
        self._engine.backward(self._scale.value, first=not self._micro)
        self._micro += 1

    @in_turn
    def get_gradients(self) -> dict[str, Array]:
        """The gradients that wait for an update, by parameter: the mean of the micro-batches'."""
        share = 1.0 / (max(self._micro, 1) * self._scale.value)
        found = {n: self._engine.store.read(gradient_name(n)) for n in self._layout.names}
        return {name: gradient * gradient.dtype.type(share) for name, gradient in found.items()}

    @in_turn
    def gradient_buffers(self) -> list[Any]:
        """The gradients that wait for an update, to read or change in place before it.

        Flat vectors, one for each update graph, in the engine's own memory: numpy arrays, or torch
        tensors on their device. They are sums over the micro-batches, times the loss scale. Who
        changes them outside of a hook calls this again, or `update_weights` uses what it measured.
        """
        return self._engine.store.gradient_buffers()

    @in_turn
    def add_gradient_hook(self, hook: Hook) -> Callable[[], None]:
        """Call `hook(buffers)` between backward and update, with `gradient_buffers`.

        The hook changes the buffers in place: to reduce them over processes, to add noise. What is
        returned removes it again.
        """
        self._hooks.append(hook)
        return lambda: self._hooks.remove(hook)

    @in_turn
    def clear_gradients(self) -> None:
        """Forget the gradients that wait for an update."""
        self._engine.store.clear_gradients()
        self._engine.finite = True
        self._micro, self._left_out = 0, False

    # -- looking -------------------------------------------------------------------------------

    @in_turn
    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        """The loss and the outputs as the model would give them after training."""
        return self._engine.evaluate(feeds)

    @in_turn
    def predict(self, feeds: Mapping[str, Any]) -> Results:
        """The model's own outputs, from its own inputs: no labels, no loss."""
        return self._engine.predict(feeds)

    @property
    def parameters(self) -> TensorView:
        """The parameters by name, to read; `set_parameters` writes them."""
        return TensorView(self._engine.store, {name: name for name in self._layout.names})

    @property
    def averages(self) -> TensorView:
        """The averaged parameters, where TrainingOptions.average asks for them."""
        names = self._layout.names if self._layout.settings.averaged else []
        return TensorView(self._engine.store, {name: slot_name(AVERAGE, name) for name in names})

    @property
    def statistics(self) -> TensorView:
        """What training changes beside the parameters: BatchNormalization's running statistics."""
        return TensorView(self._engine.store, {name: name for name in self._layout.state})

    @property
    def program(self) -> TrainingProgram:
        return self._program

    @property
    def input_names(self) -> list[str]:
        """What `step` and `evaluate` are fed: the model's inputs, then what the loss takes."""
        return [*self._layout.inputs, *self._layout.targets]

    @property
    def output_names(self) -> list[str]:
        return [LOSS, *self._layout.outputs]

    @property
    def steps(self) -> int:
        """How many updates the parameters have had."""
        return self._progress.steps

    @property
    def skipped_steps(self) -> int:
        """How many updates were left out because gradients were not finite."""
        return self._progress.skipped

    @property
    def loss_scale(self) -> float:
        return self._scale.value

    @property
    def learning_rate(self) -> float:
        """The optimizer's own learning rate at the next update, as the schedule has it."""
        return self._progress.learning_rate

    @in_turn
    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's own rate; groups keep their ratio to it, the schedule applies."""
        self._progress.set_learning_rate(rate)
        self._rates_left = 0

    # -- keeping -------------------------------------------------------------------------------

    @in_turn
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: one file, verified when it is read, never half written."""
        tensor_files.write(path, *self.checkpoint())

    @in_turn
    def checkpoint(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors and properties of a checkpoint, for `Checkpoints.save(*..., step=...)`."""
        training = {
            "updates": self._progress.state(),
            "scale": self._scale.state(),
            "seed": self._seed,
            "micro": self._micro,
            "finite": bool(self._engine.finite),
        }
        rate = self._progress.learning_rate
        properties = session_checkpoint.properties_of(self._layout, training, rate, self.properties)
        return session_checkpoint.tensors_of(
            self._layout, self._engine.store, self._micro > 0
        ), properties

    @in_turn
    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of the same model: bit for bit as if nothing had happened."""
        found = tensor_files.read(path)
        self.restore(found.tensors, found.properties, where=str(path))

    @in_turn
    def restore(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        *,
        where: str = "the checkpoint",
    ) -> None:
        """Go on from what `checkpoint` gave: all of it, or nothing if it does not fit."""
        training = session_checkpoint.training_of(properties, where, len(self._layout.updates))
        store = self._engine.store
        session_checkpoint.put_back(self._layout, store, tensors, training["micro"] > 0, where)
        self._progress.restore(training["updates"])
        self._scale.restore(training["scale"])
        self._seed = training["seed"]
        self._engine.finite = training["finite"]
        self._micro, self._left_out, self._rates_left = training["micro"], False, 0
        self.properties = dict(properties.get("user", {}))

    @in_turn
    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Give parameters (and statistics) new values, by name; all of them fit, or none is set."""
        known = {
            n: spec for n, spec in self._layout.tensors().items() if not n.startswith("optimizer/")
        }
        for name, array in check_tensors(tensors, known).items():
            self._engine.store.write(name, array)

    @in_turn
    def export(
        self,
        path: str | os.PathLike[str],
        outputs: Sequence[str] | None = None,
        *,
        averaged: bool = False,
    ) -> None:
        """Write a clean inference model with the trained (or averaged) parameters."""
        tensors = self.averages if averaged else self.parameters
        if averaged and not tensors:
            raise OptionError("there is no average\nset TrainingOptions.average when you train")
        exporting.write(self._layout, {**tensors, **self.statistics}, path, outputs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptionError(
            "a TrainingSession cannot be copied or pickled: graphs are bound to its memory\n"
            "open another one, and give it what this one has: other.restore(*this.checkpoint())"
        )
