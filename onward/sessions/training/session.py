"""TrainingSession: hold a model, its optimizer and their state, and train. It has no loop."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.checkpoint import files
from onward.sessions.training import saving
from onward.sessions.training.empty import EMPTY
from onward.sessions.training.engine import Engine
from onward.sessions.training.feeding import Feeds, Noise
from onward.sessions.training.opening import Opening, to_program
from onward.sessions.training.program import (
    LOSS,
    MEASURE,
    NOISE,
    UPDATED,
    Array,
    TrainingProgram,
)
from onward.sessions.training.scaling import LossScale
from onward.sessions.training.state import State
from onward.sessions.training.turns import in_turn
from onward.sessions.training.updating import Updates

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.losses.loss import Loss
    from onward.optimizers.optimizer import Optimizer
    from onward.sessions.training import export as exporting
    from onward.sessions.training import split as splitting
    from onward.sessions.training.options import TrainingOptions
else:  # what makes graphs; a saved program needs none of it
    exporting = LazyModule("onward.sessions.training.export")
    splitting = LazyModule("onward.sessions.training.split")

log = logging.getLogger("onward")


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
        quiet = SessionOptions(log_severity_level=4)  # what fails is raised, not also printed
        chosen = quiet if sess_options is None else SessionOptions.of(sess_options)
        self._opening = Opening(self._program, chosen, providers)
        settings = self._program.settings
        self._state = State(self._program)
        self._scale = LossScale(settings.get("loss_scale"))
        self._updates = Updates(self._program, self._state, self._opening)
        self._noise = Noise(self._program, self._opening.any)
        self._engines: dict[str, Engine] = {}
        self._feeds: dict[str, Feeds] = {}
        self._loss = np.zeros((), self._program.settings["loss_dtype"])
        self._measure = np.zeros((), np.float32)
        self._fresh = {n: np.empty_like(t) for n, t in self._state.statistics.items()}
        self._micro = 0  # micro-batches whose gradients wait for an update
        self._finite = True  # all of them
        self._left_out = False  # whether batches since the last update were empty
        self._joined = False  # whether the last ones came from the graph that also updates
        self._one_run: bool = settings["one_run"]
        self._updated = np.zeros((), np.bool_)  # whether a step in one run has updated
        self._held: splitting.Halves | None = None  # what run_forward kept for run_backward
        self.properties: dict[str, Any] = {}  # yours: they are saved with every checkpoint

    # -- training ------------------------------------------------------------------------------

    @in_turn
    def step(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """One (micro-)batch: its loss and outputs; the parameters are updated when it is time."""
        graph = "step" if self._one_run and not self._micro and self._opens_step() else "train"
        engine = self._engine(graph)
        self._feeds[graph].bind(feeds)
        if self._feeds[graph].is_empty:
            return self._leave_out(feeds)
        self._left_out = False
        others = self._differentiate(graph, engine, feeds)
        if self._updated:
            self._updated[...] = False
            self._keep_statistics()
            self._updates.end(self._measure)
            self._scale.update(True)
        else:
            self._finish()
            if self._micro >= self._program.settings["accumulate"]:
                self.update_weights()
        return {LOSS: self._loss.copy(), **dict(zip(self._program.outputs, others))}

    def _differentiate(
        self, graph: str, engine: Engine, feeds: Mapping[str, Any]
    ) -> Sequence[Array]:
        """Run a graph that computes gradients; the outputs that were asked for."""
        self._joined = graph == "train"
        if self._noise.needed:
            engine.bind_input(NOISE, self._noise.draw(feeds, self.steps, self._micro))
        self._scale.bind(engine)
        if self._joined:
            self._updates.aim(engine, first=self._micro == 0)
        else:
            self._updates.begin(1, self._scale.value)
        return self._feeds[graph].run(self._program.outputs)

    def _leave_out(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """An empty batch: it has no loss, adds nothing to the gradients and changes nothing."""
        log.warning(EMPTY, self.steps)
        self._left_out = True
        return self.evaluate(feeds)

    def _finish(self) -> None:
        """A micro-batch is through: add its gradients, keep its statistics if they are sound."""
        first = self._micro == 0
        finite = math.isfinite(self._loss) and self._updates.is_finite(self._measure, first)
        self._updates.add(first)
        self._micro += 1
        self._finite &= finite
        if finite or not self._program.settings["skip_nonfinite"]:
            self._keep_statistics()

    def _keep_statistics(self) -> None:
        for name, fresh in self._fresh.items():
            np.copyto(self._state.statistics[name], fresh)

    @in_turn
    def update_weights(self) -> bool:
        """Update the parameters with the gradients at hand; whether they were fit for it."""
        if not self._micro and self._left_out:
            return False
        if not self._micro:
            raise OptionError("there are no gradients to update with\ncall step or run_backward")
        sound = self._finite
        if sound or not self._program.settings["skip_nonfinite"]:
            self._updates.run(self._measure, self._micro, self._scale.value, self._joined)
        else:
            self._updates.skip()
        self._scale.update(sound)
        self._micro, self._finite, self._left_out = 0, True, False
        return sound

    @property
    @in_turn
    def gradient_norm(self) -> float:
        """How long the last gradients are, all together, before clipping."""
        return self._updates.last_norm()

    # -- the same, apart -----------------------------------------------------------------------

    @in_turn
    def run_forward(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The loss and the outputs of a batch, in training mode; `run_backward` goes on from it."""
        if self._held is None:
            self._held = splitting.Halves(self._program, self._state, self._opening.any)
        self._held.bind(feeds)
        if self._held.feeds.is_empty:
            return self._leave_out(feeds)
        self._left_out = False
        if self._noise.needed:
            self._held.draw(self._noise.draw(feeds, self.steps, self._micro))
        return self._held.forward(self._loss, self._fresh)

    @in_turn
    def run_backward(self) -> None:
        """The gradients of the last `run_forward`, added to those that wait for an update."""
        if self._held is not None and self._held.feeds.is_empty:
            return
        if self._held is None or not self._held.ready:
            raise OptionError("run_backward has nothing to go back from\ncall run_forward first")
        self._joined = False
        self._updates.aim(self._held.engine, first=self._micro == 0)
        self._scale.bind(self._held.engine)
        self._held.backward(self._measure)
        self._finish()

    @in_turn
    def get_gradients(self) -> dict[str, Array]:
        """The gradients that wait for an update, by parameter: the mean of the micro-batches'."""
        share = 1.0 / (max(self._micro, 1) * self._scale.value)
        return {
            name: gradient * gradient.dtype.type(share)
            for name, gradient in self._state.gradients.items()
        }

    @in_turn
    def clear_gradients(self) -> None:
        """Forget the gradients that wait for an update."""
        self._state.clear_gradients()
        self._micro, self._finite, self._left_out = 0, True, False

    # -- looking -------------------------------------------------------------------------------

    @in_turn
    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The loss and the outputs as the model would give them after training."""
        return self._look("evaluate", feeds, (LOSS, *self._program.outputs))

    @in_turn
    def predict(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The model's own outputs, from its own inputs: no labels, no loss."""
        return self._look("predict", feeds, self._program.settings["model_outputs"])

    def _look(self, graph: str, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
        self._engine(graph)
        bound = self._feeds[graph]
        bound.bind(feeds)
        if bound.is_empty and graph == "evaluate":
            return dict(zip(names, bound.results_of_empty(names)))
        return dict(zip(names, bound.run(names)))

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters by name: the arrays that are trained; writing to them changes them."""
        return dict(self._state.parameters)

    @property
    def averages(self) -> dict[str, Array]:
        """The averaged parameters, where TrainingOptions.average asks for them."""
        return dict(self._state.averages)

    @property
    def statistics(self) -> dict[str, Array]:
        """What training changes beside the parameters: BatchNormalization's running statistics."""
        return dict(self._state.statistics)

    @property
    def program(self) -> TrainingProgram:
        return self._program

    @property
    def input_names(self) -> list[str]:
        """What `step` and `evaluate` are fed: the model's inputs, then what the loss takes."""
        return [*self._program.inputs, *self._program.targets]

    @property
    def output_names(self) -> list[str]:
        return [LOSS, *self._program.outputs]

    @property
    def steps(self) -> int:
        """How many updates the parameters have had."""
        return self._updates.steps

    @property
    def skipped_steps(self) -> int:
        """How many updates were left out because gradients were not finite."""
        return self._updates.skipped

    @property
    def loss_scale(self) -> float:
        return self._scale.value

    @property
    def learning_rate(self) -> float:
        """The optimizer's own learning rate at the next update, as the schedule has it."""
        return self._updates.learning_rate

    @in_turn
    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's own rate; groups keep their ratio to it, the schedule applies."""
        self._updates.set_learning_rate(rate)

    # -- keeping -------------------------------------------------------------------------------

    @in_turn
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: one file, verified when it is read, never half written."""
        files.write(path, *self.checkpoint())

    @in_turn
    def checkpoint(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors and properties of a checkpoint, for `Checkpoints.save(*..., step=...)`."""
        training = {
            "updates": self._updates.state(),
            "scale": self._scale.state(),
            "seed": self._noise.seed,
            "micro": self._micro,
            "finite": self._finite,
        }
        rate = self._updates.learning_rate
        properties = saving.properties_of(self._program, training, rate, self.properties)
        return saving.tensors_of(self._state, self._micro > 0), properties

    @in_turn
    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of the same model: bit for bit as if nothing had happened."""
        found = files.read(path)
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
        training = saving.training_of(properties, where, len(self._program.updates))
        saving.put_back(self._state, tensors, training["micro"] > 0, where)
        self._updates.restore(training["updates"])
        self._scale.restore(training["scale"])
        self._noise.seed = training["seed"]
        self._micro, self._finite, self._left_out = training["micro"], training["finite"], False
        self.properties = dict(properties.get("user", {}))

    @in_turn
    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Give parameters (and statistics) new values, by name; all of them fit, or none is set."""
        self._state.assign(tensors)

    @in_turn
    def export(
        self,
        path: str | os.PathLike[str],
        outputs: Sequence[str] | None = None,
        *,
        averaged: bool = False,
    ) -> None:
        """Write a clean inference model with the trained (or averaged) parameters."""
        tensors = self._state.averages if averaged else self._state.parameters
        if averaged and not tensors:
            raise OptionError("there is no average\nset TrainingOptions.average when you train")
        exporting.write(self._program, {**tensors, **self._state.statistics}, path, outputs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptionError(
            "a TrainingSession cannot be copied or pickled: graphs are bound to its memory\n"
            "open another one, and give it what this one has: other.restore(*this.checkpoint())"
        )

    # -- graphs --------------------------------------------------------------------------------

    def _open_train(self) -> Engine:
        """The graph of gradients, in one session with the updates where that can be."""
        both = self._opening.branches()
        if both is None:
            return self._opening.any(self._program.train)
        self._updates.join(*both)
        return both[0]

    def _opens_step(self) -> bool:
        """Whether gradients and updates can be had in one run; if not, it is not tried again."""
        if "step" not in self._engines:
            engine = self._opening.one_run()
            self._one_run = engine is not None
            if engine is not None:
                self._updates.follow(engine)
                engine.bind_output(UPDATED, self._updated)
                self._bind("step", engine)
        return self._one_run

    def _engine(self, name: str) -> Engine:
        """A graph, bound to the state; opened when it is first used."""
        if name not in self._engines:
            graph: bytes = getattr(self._program, name)
            self._bind(name, self._open_train() if name == "train" else self._opening.any(graph))
        return self._engines[name]

    def _bind(self, name: str, engine: Engine) -> None:
        """Bind a graph to the state, and what a step gives to where it is looked at."""
        self._feeds[name] = Feeds(engine, self._program, self._state)
        if name in ("train", "step"):
            engine.bind_output(LOSS, self._loss)
            engine.bind_output(MEASURE, self._measure)
            for kept, output in self._program.state.items():
                engine.bind_output(output, self._fresh[kept])
        self._engines[name] = engine
