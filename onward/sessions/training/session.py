"""TrainingSession: a model, its optimizer and their state; each call trains one step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onward.checkpoints import tensor_files
from onward.checkpoints.sharded.pieces import Piece
from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.programs.empty_batches import EMPTY
from onward.programs.program import (
    AVERAGE,
    FLOAT8_HISTORY,
    LOSS,
    Array,
    describe_left_out,
    gradient_name,
    slot_name,
)
from onward.providers.choose import Asked, mentions_auto
from onward.providers.options import SessionOptions
from onward.providers.provider import Draw, Results
from onward.sessions.closed import CLOSED
from onward.sessions.training import session_checkpoint
from onward.sessions.training.call_lock import locked
from onward.sessions.training.open_program import open_training, to_program
from onward.sessions.training.session_loss_scale import LossScale
from onward.sessions.training.step_counts import Progress, log
from onward.sessions.training.tensor_views import CurrentStore, TensorView, check_tensors
from onward.sessions.training.training_program import TrainingProgram

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.losses.loss import Loss
    from onward.measure.tuning.tuning_result import TuningResult
    from onward.optimizers.optimizer import Optimizer
    from onward.programs import export as exporting
    from onward.programs.options import TrainingOptions
    from onward.providers.provider import TrainingExecutable
    from onward.sessions.training import auto_engine
    from onward.sessions.training.auto_engine import AutoEngine
else:  # they build graphs or start processes; a saved program does not need them
    auto_engine = LazyModule("onward.sessions.training.auto_engine")
    exporting = LazyModule("onward.programs.export")

# Higher layers, for `from_torch` and `parallel` alone: docs/design/0013-layers.md, "Front doors"
_torch_session = LazyModule("onward.pytorch.torch_session")
_distribution = LazyModule("onward.distributed.open_distributed")

Hook = Callable[[list[Any]], None]


class TrainingSession:
    """A model that is trained step by step.

    `model` is a model with a `loss` and an `optimizer`, or a program that was compiled from them
    (`compile_training`, or the folder that it was saved to). `step` computes the loss and its
    gradients and updates the parameters in place. With `providers="auto"`, the first batch decides
    which engine does: all are measured on it. Threads may share a session: their calls run one
    after the other. With `parallel`, this process is one of many that train the model together,
    each on its part of every batch (docs/distributed.md).
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
        parallel: Any = None,  # onward.distributed.Parallel
    ) -> None:
        self._lock = threading.RLock()
        self._program: TrainingProgram = (
            to_program(model, loss, optimizer, options, providers)
            if parallel is None
            else _distribution.distributed_program(model, loss, optimizer, options, parallel)
        )
        self._layout = self._program.layout
        quiet = SessionOptions(log_severity_level=4)  # errors are raised, not printed in addition
        chosen = quiet if sess_options is None else SessionOptions.of(sess_options)
        self._auto: AutoEngine | None = None  # until the first batch has chosen an engine
        self._tuning_result: TuningResult | None = None
        if mentions_auto(providers) and parallel is None:
            self._auto = auto_engine.AutoEngine(self._program, chosen, providers)
            providers = None
        if parallel is None:
            opened = open_training(self._program, chosen, providers)
        else:
            opened = _distribution.open_distributed(self._program, chosen, providers, parallel)
        self._engine: TrainingExecutable = opened.engine
        self._providers = opened.providers
        self._tensors = CurrentStore(opened.engine.store)
        settings = self._layout.settings
        self._progress = Progress(self._layout)
        self._scale = LossScale(settings.loss_scale)
        self._scale.move_to(self._engine)
        self._seed = settings.seed
        self._hooks: list[Hook] = []
        self._micro = 0  # micro-batches whose gradients are accumulated
        self._next_draw: tuple[int, int] | None = None  # that of `draw_as`
        self._only_empty = False  # whether all batches since the last update were empty
        self._rates_left = 0  # number of updates that the engine still has learning rates for
        self.properties: dict[str, Any] = {}  # the user's; saved with every checkpoint

    @classmethod
    def from_torch(
        cls,
        module: Any,
        loss: Any,
        optimizer: Any,
        *,
        example: Any,
        targets: Any = (),
        options: TrainingOptions | Mapping[str, Any] | None = None,
        sess_options: Any = None,
        providers: Asked = None,
    ) -> TrainingSession:
        """A session that trains a PyTorch module: the whole step, captured once.

        module: a torch.nn.Module; parameters keep their names, those without requires_grad stay.
        loss: one of onward.losses, of the module's first output; a loss of torch, called with the
            module's result and the targets; None: the module returns its loss.
        optimizer: one of onward.optimizers, or of torch.optim: its groups, settings and state.
        example: the arguments of a call: a tuple, or a dictionary by name.
        targets: those of a loss of torch: a tuple, or a dictionary by name.

        `onward.pytorch.write_to_module` and `write_to_optimizer` write the trained tensors back.
        The examples are on the page docs/export-pytorch.md.
        """
        session: TrainingSession = _torch_session.open_torch_session(
            module,
            loss,
            optimizer,
            example=example,
            targets=targets,
            options=options,
            sess_options=sess_options,
            providers=providers,
        )
        return session

    # -- closing -------------------------------------------------------------------------------

    @locked
    def close(self) -> None:
        """Release the engine and its tensors, after the calls of other threads.

        Training, evaluating and saving after it raise SessionClosed; closing twice is fine.
        """
        self._engine = self._tensors = CLOSED
        self._auto = None
        self._hooks.clear()
        self._scale.move_to(None)

    def __enter__(self) -> TrainingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- training ------------------------------------------------------------------------------

    @locked
    def step(self, feeds: Mapping[str, Any]) -> Results:
        """Train on one (micro-)batch, and return its loss and outputs.

        The parameters are updated after every `accumulate` batches.
        """
        if self._auto is not None:
            self._choose_engine(self._auto, feeds)
        settings = self._layout.settings
        whole = settings.accumulate == 1 and settings.skip_nonfinite
        if whole and not self._micro and not self._hooks:
            self._send_rates()
            done = self._engine.step(feeds, self._draw(), self._scale.for_engine)
            if done is None:
                return self._skip_empty(feeds)
            results, finite = done
            self._end_update(finite)
            return results
        computed = self._engine.compute_gradients(
            feeds, self._draw(), self._scale.for_engine, first=not self._micro
        )
        if computed is None:
            return self._skip_empty(feeds)
        self._only_empty = False
        self._micro += 1
        if self._micro >= settings.accumulate:
            self._update()
        return computed

    def _choose_engine(self, auto: AutoEngine, feeds: Mapping[str, Any]) -> None:
        """With providers="auto", move to the engine that is the fastest for the first batch."""
        batch = auto.read_batch(feeds)
        if batch is None:
            return
        opened = auto.choose(batch, self._write_state, self._providers)
        if opened is not None:
            old, new = self._engine, opened.engine
            session_checkpoint.copy_tensors(self._layout, old.store, new.store, self._micro > 0)
            new.finite = bool(old.finite)
            self._scale.move_to(new)
            self._engine, self._providers = opened
            self._tensors.store = new.store
            self._rates_left = 0
        self._auto, self._tuning_result = None, auto.result

    def _write_state(self, path: Path) -> None:
        """Write a checkpoint without the user's properties."""
        tensors, properties = self.checkpoint()
        tensor_files.write(path, tensors, {**properties, "user": {}})

    def _draw(self) -> Draw:
        """The position of random numbers; an engine that runs ahead counts skipped updates, too."""
        if self._next_draw is not None:
            (step, micro), self._next_draw = self._next_draw, None
            return Draw(self._seed, step, micro)
        ahead = self._engine.lookahead > 1
        step = self._progress.started if ahead else self._progress.steps
        return Draw(self._seed, step, self._micro)

    def _skip_empty(self, feeds: Mapping[str, Any]) -> Results:
        """An empty batch: it has no loss, adds nothing to the gradients and changes nothing."""
        log.warning(EMPTY, self.steps)
        self._only_empty = True
        return self.evaluate(feeds)

    @locked
    def update_weights(self) -> bool:
        """Update the parameters with the accumulated gradients; return whether all were finite."""
        if not self._micro and self._only_empty:
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
        finite = self._engine.update(self._micro, self._scale.for_engine)
        self._end_update(finite)
        self._micro = 0
        return finite

    def _end_update(self, finite: Any) -> None:
        self._progress.record(finite)
        self._only_empty = False
        self._scale.update(finite)
        self._rates_left -= 1
        if not self._rates_left:
            self._progress.read_flags()

    def _send_rates(self) -> None:
        """Give the engine the learning rates of the next updates, unless it has them."""
        if not self._rates_left:
            rates = self._progress.rates_ahead(self._engine.lookahead)
            self._engine.set_rates(self._progress.steps, rates)
            self._rates_left = self._engine.lookahead

    @property
    @locked
    def gradient_norm(self) -> float:
        """The norm of all gradients of the last update, before clipping."""
        return self._engine.gradient_norm()

    # -- forward, backward, update -------------------------------------------------------------

    @locked
    def run_forward(self, feeds: Mapping[str, Any]) -> Results:
        """The loss and the outputs of a batch, in training mode; `run_backward` follows it."""
        if self._auto is not None:
            self._choose_engine(self._auto, feeds)
        results = self._engine.forward(feeds, self._draw())
        if results is None:
            return self._skip_empty(feeds)
        self._only_empty = False
        return results

    @locked
    def run_backward(self) -> None:
        """Add the gradients of the last `run_forward` to the accumulated ones."""
        if self._only_empty:
            return
        self._engine.backward(self._scale.for_engine, first=not self._micro)
        self._micro += 1

    @locked
    def get_gradients(self) -> dict[str, Array]:
        """The accumulated gradients by parameter: the mean over the micro-batches."""
        share = 1.0 / (max(self._micro, 1) * self._scale.value)
        found = {n: self._engine.store.read(gradient_name(n)) for n in self._layout.names}
        return {name: gradient * gradient.dtype.type(share) for name, gradient in found.items()}

    @locked
    def set_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Replace the accumulated gradients by those of one micro-batch, for `update_weights`.

        They were computed elsewhere; a parameter without one gets zeros.
        """
        weights = self._layout.weights()
        known = {name: weights[name] for name in self._layout.names}
        arrays = check_tensors(gradients, known)
        self._engine.store.clear_gradients()
        for name, array in arrays.items():
            scale = known[name][0].type(self._scale.value)
            self._engine.store.write(gradient_name(name), array * scale)
        self._engine.gradients_changed()
        self._micro, self._only_empty = 1, False

    @locked
    def draw_as(self, step: int, micro: int) -> None:
        """Draw the random numbers of the next batch as micro-batch `micro` of this step does.

        For a session whose updates are made elsewhere, and whose own number of steps stays 0.
        """
        self._next_draw = step, micro

    @locked
    def gradient_buffers(self) -> list[Any]:
        """The accumulated gradients, to read or change in place before the update.

        Flat vectors, one for each update graph, in the engine's own memory: numpy arrays, or torch
        tensors on their device. They are sums over the micro-batches, times the loss scale. After
        changing them outside of a hook, call this again: `update_weights` then measures them again.
        """
        return self._engine.store.gradient_buffers()

    @locked
    def add_gradient_hook(self, hook: Hook) -> Callable[[], None]:
        """Call `hook(buffers)` between backward and update, with `gradient_buffers`.

        The hook changes the buffers in place: to reduce them over processes, to add noise. Call the
        returned function to remove it.
        """
        self._hooks.append(hook)
        return lambda: self._hooks.remove(hook)

    @locked
    def clear_gradients(self) -> None:
        """Discard the accumulated gradients."""
        self._engine.store.clear_gradients()
        self._engine.finite = True
        self._micro, self._only_empty = 0, False

    # -- evaluating -------------------------------------------------------------------------------

    @locked
    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        """The loss and the outputs in inference mode."""
        return self._engine.evaluate(feeds)

    @locked
    def predict(self, feeds: Mapping[str, Any]) -> Results:
        """The model's own outputs, from its own inputs: no labels, no loss."""
        return self._engine.predict(feeds)

    @property
    def parameters(self) -> TensorView:
        """The parameters by name, to read; `set_parameters` writes them."""
        return self._tensors.view({name: name for name in self._layout.names})

    @property
    def averages(self) -> TensorView:
        """The averaged parameters, if TrainingOptions.average is set."""
        names = self._layout.names if self._layout.settings.averaged else []
        return self._tensors.view({name: slot_name(AVERAGE, name) for name in names})

    @property
    def statistics(self) -> TensorView:
        """The running statistics of BatchNormalization, which training changes, too."""
        names = (name for name in self._layout.state if name != FLOAT8_HISTORY)  # not the model's
        return self._tensors.view({name: name for name in names})

    @property
    def program(self) -> TrainingProgram:
        return self._program

    def describe_sparsity(self, feeds: Mapping[str, Any] | None = None) -> str:
        """What TrainingOptions.sparsity leaves out of a step, or why not, a line for each.

        With the feeds of a batch also the share of tokens that are left out of it.
        """
        return describe_left_out(self._layout, feeds)

    def get_providers(self) -> list[str]:
        """The providers in use, the preferred one first."""
        return list(self._providers)

    @property
    def tuning_result(self) -> TuningResult | None:
        """What `providers="auto"` measured, the fastest engine first.

        None before the first step, and where there was no choice.
        """
        return self._tuning_result

    @property
    def input_names(self) -> list[str]:
        """The feeds of `step` and `evaluate`: the model's inputs, then the loss's."""
        return [*self._layout.inputs, *self._layout.targets]

    @property
    def output_names(self) -> list[str]:
        return [LOSS, *self._layout.outputs]

    @property
    def steps(self) -> int:
        """The number of updates."""
        return self._progress.steps

    @property
    def skipped_steps(self) -> int:
        """The number of updates that were skipped because gradients were not finite."""
        return self._progress.skipped

    @property
    def lookahead(self) -> int:
        """The number of updates after which `steps` is known: an engine on a GPU runs ahead."""
        return self._engine.lookahead

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent to others; 0 where one process trains alone."""
        return getattr(self._engine, "bytes_sent", 0)

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next step; waits for an engine that runs ahead."""
        return self._scale.value

    @property
    def learning_rate(self) -> float:
        """The optimizer's own learning rate at the next update, by the schedule."""
        return self._progress.learning_rate

    @property
    def expected_learning_rate(self) -> float:
        """`learning_rate` without waiting for an engine that runs ahead.

        It is exact unless one of the updates that are still computed will be skipped.
        """
        return self._progress.expected_rate

    @locked
    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's own rate; groups keep their ratio to it, the schedule applies."""
        self._progress.set_learning_rate(rate)
        self._rates_left = 0

    # -- saving -------------------------------------------------------------------------------

    @locked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: one file, atomically, verified when it is read."""
        tensor_files.write(path, *self.checkpoint())

    @locked
    def checkpoint(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors and properties of a checkpoint, for `Checkpoints.save(*..., step=...)`."""
        store, pending = self._engine.store, self._micro > 0
        return session_checkpoint.tensors_of(self._layout, store, pending), self._describe_state()

    @locked
    def checkpoint_pieces(self) -> tuple[dict[str, Piece], dict[str, Any]]:
        """`checkpoint` in pieces that this process holds, for `ShardedCheckpoints.save`."""
        store, pending = self._engine.store, self._micro > 0
        return session_checkpoint.pieces_of(self._layout, store, pending), self._describe_state()

    def _describe_state(self) -> dict[str, Any]:
        """The properties of a checkpoint."""
        training = {
            "updates": self._progress.state(),
            "scale": self._scale.state(),
            "seed": self._seed,
            "micro": self._micro,
            "finite": bool(self._engine.finite),
        }
        rate = self._progress.learning_rate
        return session_checkpoint.properties_of(self._layout, training, rate, self.properties)

    @locked
    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint of the same model, bit for bit."""
        found = tensor_files.read(path)
        self.restore(found.tensors, found.properties, where=str(path))

    @locked
    def restore(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        *,
        where: str = "the checkpoint",
    ) -> None:
        """Continue from what `checkpoint` returned; nothing changes if it does not fit."""
        training = session_checkpoint.training_of(properties, where, len(self._layout.updates))
        store = self._engine.store
        session_checkpoint.restore_tensors(
            self._layout, store, tensors, training["micro"] > 0, where
        )
        self._progress.restore(training["updates"])
        self._scale.restore(training["scale"])
        self._seed = training["seed"]
        self._engine.finite = training["finite"]
        self._micro, self._only_empty, self._rates_left = training["micro"], False, 0
        self.properties = dict(properties.get("user", {}))

    @locked
    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Set parameters (and statistics) by name; if one does not fit, none is set."""
        known = {
            n: spec for n, spec in self._layout.tensors().items() if not n.startswith("optimizer/")
        }
        for name, array in check_tensors(tensors, known).items():
            self._engine.store.write(name, array)

    @locked
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
            "open another one and copy the state: other.restore(*this.checkpoint())"
        )
