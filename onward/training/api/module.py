"""Module: runs the training and evaluation graphs of a model over the parameters of a state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import FeedError, OnwardError, OptionError, ProviderMissing
from onward.graph.paths import check_readable
from onward.lazy import LazyModule
from onward.programs.program import Array
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import (
    CPU,
    copy_to_ort,
    is_ort_value,
    stop_spinning_after_runs,
    to_numpy,
)
from onward.providers.ort.denormals import flush_denormals
from onward.providers.ort.session import ProviderList, available
from onward.providers.ort.training.bound_graph import OrtGraph
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.ort.training.step_feeds import StepFeeds
from onward.providers.ort.training.store import NumpyStore
from onward.providers.provider import Draw
from onward.training.api.checkpoint_state import CheckpointState
from onward.training.api.graph_roles import Roles, find_roles
from onward.training.api.graph_sessions import ModuleGraphOpener, open_graph
from onward.training.api.training_graph import layout_of, open_training, program_of

_export = LazyModule("onward.training.api.inference_export")  # it loads onnx

_CUDA = "CUDAExecutionProvider"
MAX_NUMBERS_PER_RUN = 1 << 20  # that one update run changes: bounds its extra memory


class Module:
    """Trains and evaluates: `module(*inputs)` runs the graph of the mode it is in.

    A call in training mode returns the loss and adds to the gradients; after `lazy_reset_grad` the
    next call overwrites them. A call that fails changes nothing. An empty batch has no loss (NaN)
    and adds nothing.
    """

    training: bool

    def __init__(
        self,
        train_model_uri: str | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        session_options: Any = None,
    ) -> None:
        if not isinstance(state, CheckpointState):
            raise TypeError(f"state must be a CheckpointState, not {type(state).__name__}")
        self.training = True
        self._state = state
        self._options = _options(session_options)
        self._providers = _providers(device)
        self._eval_uri = eval_model_uri
        if eval_model_uri is not None:
            check_readable(Path(eval_model_uri), "evaluation model")
        held = state._state
        graph, self._roles = open_training(
            train_model_uri, held.requires_grad, self._options, self._providers
        )
        held.check_parameters(self._roles.parameters, list(self._roles.gradients))
        held.set_layout(layout_of(self._roles))
        self._opener = ModuleGraphOpener(graph, self._options)
        self._engine: OrtTraining | None = None
        self._eval: tuple[OrtGraph, Roles] | None = None
        self._eval_feeds: tuple[NumpyStore, StepFeeds] | None = None
        self._accumulating = False  # whether the gradients hold something to add to
        self._is_empty = False  # whether all batches since the reset were empty
        self._seed = 0  # of random numbers, such as dropout's
        self._draws = (0, 0)  # updates so far, and training calls since the last of them
        self.input_gradients: dict[str, Array] = {}  # of the feeds, if the artifacts have any

    def __call__(self, *user_inputs: Any) -> Any:
        """Run the graph of the mode; one result or a tuple, as numpy, or as OrtValues if given."""
        self._state._state.check_loaded()
        names = self._names()
        if len(user_inputs) != len(names):
            raise FeedError(
                f"the model takes {len(names)} inputs, not {len(user_inputs)}\n"
                f"call it with {', '.join(names)}"
            )
        feeds = {n: to_numpy(value) for n, value in zip(names, user_inputs)}
        results = self._run_training(feeds) if self.training else self._run_evaluation(feeds)
        if user_inputs and all(map(is_ort_value, user_inputs)):
            results = [each if each.dtype.kind == "O" else copy_to_ort(each) for each in results]
        return results[0] if len(results) == 1 else tuple(results)

    def train(self, mode: bool = True) -> Module:
        """Switch to training, or with False to evaluation."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next training step overwrite the gradients instead of adding to them."""
        self._accumulating = False

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Any:
        """A copy of the float32 parameters, trainable ones first, as one OrtValue."""
        state = self._state._state
        state.check_loaded()
        names = self._in_buffer(trainable_only)
        return copy_to_ort(np.concatenate([state.tensors[name].reshape(-1) for name in names]))

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """The total size of the float32 parameters."""
        tensors = self._state._state.tensors
        return sum(tensors[name].size for name in self._in_buffer(trainable_only))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set the parameters from one buffer in the order of `get_contiguous_parameters`."""
        state = self._state._state
        array = np.asarray(to_numpy(buffer))
        size = self.get_parameters_size(trainable_only)
        if array.dtype != np.float32 or array.size != size:
            which = "trainable parameters" if trainable_only else "parameters"
            raise FeedError(
                f"the {which} are {size} of float32, "
                f"the buffer has {array.size} of {array.dtype}\n"
                f"take one from get_contiguous_parameters(trainable_only={trainable_only})"
            )
        flat, start = array.reshape(-1), 0
        for name in self._in_buffer(trainable_only):
            tensor = state.tensors[name]
            tensor[...] = flat[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
            state.missing.discard(name)

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: Sequence[str]
    ) -> None:
        """Write a model for inference: these outputs of the evaluation model, with its parameters.

        Loss, labels and other nodes that the outputs do not need are removed. This loads onnx.
        """
        state = self._state._state
        state.check_loaded()
        if self._eval_uri is None:
            raise _no_evaluation("an inference model is made from it")
        outputs = list(graph_output_names)
        _export.export(self._eval_uri, state.tensors, outputs, inference_model_uri)

    def input_names(self) -> list[str]:
        """The inputs of a call in the current mode."""
        return list(self._names())

    def output_names(self) -> list[str]:
        """The outputs of a call in the current mode."""
        roles = self._roles if self.training else self._evaluation()[1]
        return list(roles.output_names)

    # -- internals -----------------------------------------------------------------------------

    def _names(self) -> Sequence[str]:
        return (self._roles if self.training else self._evaluation()[1]).inputs

    def _open_engine(self) -> OrtTraining:
        """The train graph and the updates, bound to the state's current memory."""
        state = self._state._state
        store, old = state.store, self._engine
        if old is None or old.store is not store:
            engine = OrtTraining(
                program_of(self._roles, state),
                self._opener,
                store,
                at_once=MAX_NUMBERS_PER_RUN,
                squared=self._roles.squared,
            )
            engine.finite = old is None or old.finite
            self._engine = engine
            return engine
        return old

    def _evaluation(self) -> tuple[OrtGraph, Roles]:
        """The evaluation graph, opened at its first use."""
        if self._eval is None:
            if self._eval_uri is None:
                raise _no_evaluation("train() switches back")
            session = open_graph(self._eval_uri, self._options, self._providers)
            state = self._state._state
            roles = find_roles(session, state.requires_grad)
            trained = [name for name in roles.parameters if state.requires_grad.get(name)]
            state.check_parameters(roles.parameters, trained, whole=False)
            self._eval = OrtGraph(session), roles
        return self._eval

    def _run_evaluation(self, feeds: dict[str, Any]) -> list[Array]:
        (graph, roles), store = self._evaluation(), self._state._state.store
        if self._eval_feeds is None or self._eval_feeds[0] is not store:
            self._eval_feeds = store, StepFeeds(graph, layout_of(roles), store)
        bound = self._eval_feeds[1]
        bound.bind(feeds)
        return bound.results_of_empty(roles.outputs) if bound.is_empty else bound.run(roles.outputs)

    def _run_training(self, feeds: dict[str, Any]) -> list[Array]:
        """One step: adds gradients in place, and keeps statistics if it succeeds."""
        engine = self._open_engine()
        first = not self._accumulating
        try:
            found = engine.compute_gradients(feeds, self._draw(), 1.0, first)
        except OnwardError as error:
            error.add_note("parameters, state and accumulated gradients are as before this step")
            raise
        if found is None:  # no loss, and nothing to add to the gradients
            self._is_empty |= first
            found = engine.results_of_empty()
            for name, gradient in self._roles.input_gradients.items():
                found[gradient] = np.zeros_like(feeds[name])
        else:
            self._accumulating, self._is_empty = True, False
        for name, gradient in self._roles.input_gradients.items():
            self.input_gradients[name] = found[gradient]
        return [found[name] for name in self._roles.outputs]

    def _draw(self) -> Draw:
        """What random numbers depend on: a resumed training draws the same ones."""
        stored = self._state._state.optimizer
        steps = 0 if stored is None else stored.step
        calls = self._draws[1] + 1 if self._draws[0] == steps else 1
        self._draws = steps, calls
        return Draw(self._seed, steps, calls - 1)

    def _in_buffer(self, trainable_only: bool) -> list[str]:
        names = self._state._state.buffer_names(trainable_only)
        if not names:
            raise OptionError(
                "no float32 parameters, and a buffer holds no others\n"
                "take each from state.parameters"
            )
        return names


def _options(given: Any) -> SessionOptions:
    """The user's options; by default onnxruntime logs nothing in addition to its errors.

    Threads of one graph yield the cores to the next graph, and denormals are flushed to zero where
    they are slow: both as in a TrainingSession.
    """
    options = SessionOptions(log_severity_level=4) if given is None else SessionOptions.of(given)
    return flush_denormals(stop_spinning_after_runs(options))


def _providers(device: str) -> ProviderList:
    """ "cpu", "cuda" or "cuda:1" as providers."""
    name, _, number = device.partition(":")
    if name == "cpu":
        return CPU
    if name != "cuda" or not (number or "0").isdigit():
        raise OptionError(f'no device {device!r}\ngive "cpu", "cuda" or "cuda:1"')
    if _CUDA not in available():
        raise ProviderMissing(
            "device 'cuda': this onnxruntime has no CUDAExecutionProvider\n"
            'install onnxruntime-gpu, or give device="cpu"'
        )
    return [(_CUDA, {"device_id": number or "0"}), *CPU]


def _no_evaluation(what: str) -> OptionError:
    return OptionError(
        f"no evaluation model was given: {what}\nModule(train_model, state, eval_model)"
    )
