"""TrainingSession: a model, its optimizer and their state; each call trains one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onward.checkpoints import tensor_files
from onward.errors import OptionError
from onward.lazy import LazyModule
from onward.programs.program import Array
from onward.providers.choose import Asked, mentions_auto
from onward.providers.options import SessionOptions
from onward.providers.provider import Results
from onward.sessions.closed import CLOSED
from onward.sessions.training.call_lock import locked
from onward.sessions.training.open_program import open_training, to_program
from onward.sessions.training.process_state import read_process_state, restore_process_state
from onward.sessions.training.session_state import SessionState
from onward.sessions.training.training_program import TrainingProgram
from onward.sessions.training.update_cycle import Hook

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.losses.loss import Loss
    from onward.measure.tuning.tuning_result import TuningResult
    from onward.optimizers.optimizer import Optimizer
    from onward.programs.training_options import TrainingOptions
    from onward.sessions.training import auto_engine
    from onward.sessions.training.auto_engine import AutoEngine
else:  # they build graphs or start processes; a saved program does not need them
    auto_engine = LazyModule("onward.sessions.training.auto_engine")

# Higher layers, only for `from_torch` and `parallel`: docs/design/0013-layers.md, "Front doors"
_torch_session = LazyModule("onward.pytorch.torch_session")
_distribution = LazyModule("onward.distributed.open_distributed")


class TrainingSession(SessionState):
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
        program: TrainingProgram = (
            to_program(model, loss, optimizer, options, providers)
            if parallel is None
            else _distribution.distributed_program(
                model, loss, optimizer, options, parallel, providers
            )
        )
        quiet = SessionOptions(log_severity_level=4)  # errors are raised, not printed in addition
        chosen = quiet if sess_options is None else SessionOptions.of(sess_options)
        self._auto: AutoEngine | None = None  # until the first batch has chosen an engine
        self._tuning_result: TuningResult | None = None
        is_auto = mentions_auto(providers)
        first = None if is_auto else providers
        if parallel is None:
            opened = open_training(program, chosen, first)
        else:
            opened = _distribution.open_distributed(program, chosen, first, parallel)
        if is_auto:
            opener = (
                auto_engine.opener_of_one(program, chosen)
                if parallel is None
                else _distribution.engine_opener(
                    *(program, chosen, opened),
                    lambda: to_program(
                        model, loss, optimizer, _distribution.distributed_options(options)
                    ),
                )
            )
            self._auto = auto_engine.AutoEngine(opener, chosen, providers)
        super().__init__(program, opened)

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
        self._cycle.close()
        self._tensors = CLOSED
        self._auto = None

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
        return self._cycle.step(feeds)

    def _choose_engine(self, auto: AutoEngine, feeds: Mapping[str, Any]) -> None:
        """With providers="auto", move to the engine that is the fastest for the first batch."""
        batch = auto.read_batch(feeds)
        if batch is None:
            return
        opened = auto.choose(batch, self._write_state, self._providers)
        if opened is not None:
            restore_process_state(opened.engine, read_process_state(self._engine))
            self._cycle.move_to(opened.engine)
            self._providers = opened.providers
            self._tensors.store = opened.engine.store
        self._auto, self._tuning_result = None, auto.result

    def _write_state(self, path: Path) -> None:
        """Write a checkpoint without the user's properties."""
        tensors, properties = self.checkpoint()
        tensor_files.write(path, tensors, {**properties, "user": {}})

    @property
    def tuning_result(self) -> TuningResult | None:
        """What `providers="auto"` measured, the fastest engine first.

        None before the first step, and where there was no choice.
        """
        return self._tuning_result

    @locked
    def update_weights(self) -> bool:
        """Update the parameters with the accumulated gradients; return whether all were finite."""
        return self._cycle.update()

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
        return self._cycle.forward(feeds)

    @locked
    def run_backward(self) -> None:
        """Add the gradients of the last `run_forward` to the accumulated ones."""
        self._cycle.backward()

    @locked
    def get_gradients(self) -> dict[str, Array]:
        """The accumulated gradients by parameter: the mean over the micro-batches."""
        return self._cycle.get_gradients()

    @locked
    def set_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Replace the accumulated gradients by those of one micro-batch, for `update_weights`.

        They were computed elsewhere; a parameter without one gets zeros.
        """
        self._cycle.set_gradients(gradients)

    @locked
    def draw_as(self, step: int, micro: int) -> None:
        """Draw the random numbers of the next batch as micro-batch `micro` of this step does.

        For a session whose updates are made elsewhere, and whose own number of steps stays 0.
        """
        self._cycle.draw_as(step, micro)

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
        self._cycle.hooks.append(hook)
        return lambda: self._cycle.hooks.remove(hook)

    @locked
    def clear_gradients(self) -> None:
        """Discard the accumulated gradients."""
        self._cycle.clear_gradients()

    # -- evaluating ----------------------------------------------------------------------------

    @locked
    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        """The loss and the outputs in inference mode."""
        return self._engine.evaluate(feeds)

    @locked
    def predict(self, feeds: Mapping[str, Any]) -> Results:
        """The model's own outputs, from its own inputs: no labels, no loss."""
        return self._engine.predict(feeds)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptionError(
            "a TrainingSession cannot be copied or pickled: graphs are bound to its memory\n"
            "open another one and copy the state: other.restore(*this.checkpoint())"
        )
