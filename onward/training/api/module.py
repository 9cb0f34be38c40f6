"""Module: the training and evaluation graphs of a model, over the parameters of a state."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import (
    FeedError,
    InvalidModel,
    NodeFailed,
    OnwardError,
    OptionError,
    ProviderMissing,
)
from onward.graph.paths import check_readable
from onward.lazy import LazyModule
from onward.programs.empty import empty_results, is_empty
from onward.programs.ranges import check_labels, index_refusal
from onward.providers.options import SessionOptions
from onward.providers.ort.bound import CPU, BoundSession, is_ort, taking_turns, to_numpy, to_ort
from onward.providers.ort.denormals import without
from onward.providers.ort.session import ProviderList, available
from onward.providers.ort.training.finite import is_finite
from onward.training.api.checkpoint_state import CheckpointState
from onward.training.api.feeds import check_feeds
from onward.training.api.flat import Array, Tensors
from onward.training.api.opening import open_graph
from onward.training.api.roles import RESET, Roles, kind, roles

_export = LazyModule("onward.training.api.inference")  # it loads onnx

_CUDA = "CUDAExecutionProvider"


class Module:
    """Trains and evaluates: `module(*inputs)` runs the graph of the mode it is in.

    A call in training mode gives the loss and adds to the gradients; `lazy_reset_grad` lets the
    next call begin them again. A call that fails changes nothing. An empty batch has no loss (NaN)
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
            raise TypeError(f"state is a CheckpointState, not {type(state).__name__}")
        self.training = True
        self._state = state
        self._options = _options(session_options)
        self._providers = _providers(device)
        self._eval_uri = eval_model_uri
        self._eval: tuple[BoundSession, Roles] | None = None
        if eval_model_uri is not None:
            check_readable(Path(eval_model_uri), "evaluation model")
        self._accumulating = False  # whether the gradients hold something to add to
        self._finite = True  # whether the losses that they are of are finite
        self._is_empty = False  # whether none but empty batches came since they were reset
        self._reset = np.array([True])
        self.input_gradients: dict[str, Array] = {}  # of what is fed, if the artifacts have any
        self._moving: dict[str, tuple[Array, Array]] = {}  # state before and after a step
        self._train = self._open_training(train_model_uri)

    def __call__(self, *user_inputs: Any) -> Any:
        """Run a step of the mode; numpy gives numpy, OrtValues give OrtValues, one comes bare."""
        self._state._state.check_loaded()
        session, names = self._train if self.training else self._evaluation()
        feeds = check_feeds(session, names.inputs, user_inputs)
        for labels in names.labels:
            check_labels(np.asarray(to_numpy(feeds[labels.name])), labels)
        shapes = {name: _shape(value) for name, value in feeds.items()}
        if is_empty(shapes, (session.inputs[name] for name in names.inputs)):
            results = self._leave_out(session, names, shapes)
        else:
            for name, value in feeds.items():
                session.bind_input(name, value, checked=True)
            results = self._run_training(feeds) if self.training else _run(session, names.outputs)
        if not user_inputs or not all(map(is_ort, user_inputs)):
            results = [to_numpy(value) for value in results]
        return results[0] if len(results) == 1 else tuple(results)

    def train(self, mode: bool = True) -> Module:
        """Switch to training, or with False to evaluation."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next training step begin the gradients anew."""
        self._accumulating = False

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Any:
        """A copy of the float32 parameters, trainable ones first, as one OrtValue."""
        self._state._state.check_loaded()
        return to_ort(self._one_buffer(trainable_only))

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """How many numbers the float32 parameters have."""
        return self._one_buffer(trainable_only).size

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set the parameters from one buffer, laid out as `get_contiguous_parameters` gives it."""
        state = self._state._state
        array = np.asarray(to_numpy(buffer))
        target = self._one_buffer(trainable_only)
        if array.dtype != target.dtype or array.size != target.size:
            which = "trainable parameters" if trainable_only else "parameters"
            raise FeedError(
                f"the {which} are {target.size} of {target.dtype}, "
                f"the buffer has {array.size} of {array.dtype}\n"
                f"take one from get_contiguous_parameters(trainable_only={trainable_only})"
            )
        target[...] = array.reshape(-1)
        state.brought(trainable_only)

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: Sequence[str]
    ) -> None:
        """Write a model for inference: these outputs of the evaluation model, the parameters in it.

        Loss, labels and whatever else the outputs do not need are gone. This loads onnx.
        """
        state = self._state._state
        state.check_loaded()
        if self._eval_uri is None:
            raise _no_evaluation("an inference model is made from it")
        values = {name: state.read(name) for name in state.requires_grad}
        _export.export(self._eval_uri, values, list(graph_output_names), inference_model_uri)

    def input_names(self) -> list[str]:
        """The inputs that a call takes, in the mode that it is in."""
        return list((self._train if self.training else self._evaluation())[1].inputs)

    def output_names(self) -> list[str]:
        """The outputs that a call gives, in the mode that it is in."""
        return list((self._train if self.training else self._evaluation())[1].outputs)

    # -- inside --------------------------------------------------------------------------------

    def _open_training(self, uri: str | os.PathLike[str]) -> tuple[BoundSession, Roles]:
        """Open the training graph and bind all that stays where it is."""
        session = open_graph(uri, self._options, self._providers)
        state = self._state._state
        names = roles(session, state.requires_grad)
        if not names.buffers:
            raise InvalidModel(
                f"{os.fspath(uri)!r} is not a training model: it has no gradients\n"
                "make it with onward.training.artifacts.generate_artifacts"
            )
        kinds = {name: kind(session.inputs[name]) for name in names.parameters}
        state.belong_to(kinds, names.trainable)
        if state.gradients is None:
            order = [name for name in state.trainable if name in names.buffers]
            state.gradients = Tensors({n: kind(session.inputs[names.buffers[n]]) for n in order})
        self._bind_parameters(session, names)
        for name in names.trainable:
            session.bind_input(names.buffers[name], state.gradients[name])
            session.bind_output(names.sums[name], state.gradients[name])
        for name, output in names.updated.items():
            dtype, shape = kinds[name]
            self._moving[name] = np.empty(shape, dtype), np.empty(shape, dtype)
            session.bind_input(name, self._moving[name][0])
            session.bind_output(output, self._moving[name][1])
        session.bind_input(RESET, self._reset)
        return session, names

    def _bind_parameters(self, session: BoundSession, names: Roles) -> None:
        tensors = self._state._state.parameters
        assert tensors is not None
        for name in names.parameters:
            session.bind_input(name, tensors[name])

    def _evaluation(self) -> tuple[BoundSession, Roles]:
        """The evaluation graph, opened when it is first needed."""
        if self._eval is None:
            if self._eval_uri is None:
                raise _no_evaluation("train() switches back")
            session = open_graph(self._eval_uri, self._options, self._providers)
            state = self._state._state
            names = roles(session, state.requires_grad)
            kinds = {name: kind(session.inputs[name]) for name in names.parameters}
            state.belong_to(kinds, [n for n in kinds if state.requires_grad.get(n)], whole=False)
            self._bind_parameters(session, names)
            self._eval = session, names
        return self._eval

    def _run_training(self, feeds: Mapping[str, Any]) -> list[Any]:
        """One step; gradients are summed where they lie, state is taken over when all went well."""
        session, names = self._train
        gradients, tensors = self._state._state.gradients, self._state._state.parameters
        assert gradients is not None and tensors is not None
        flats = list(gradients.flats.values())
        kept = [flat.buffer.copy() if self._accumulating else np.zeros(()) for flat in flats]
        self._reset[0] = is_first = not self._accumulating
        for name, (before, _) in self._moving.items():  # kernels may write into what they read
            before[...] = tensors[name]
        self._bind_input_gradients(session, names, feeds)
        try:
            results = _run(session, names.outputs)
        except OnwardError as error:
            for flat, old in zip(flats, kept):
                flat.buffer[...] = old
            error.add_note("parameters, state and accumulated gradients are as before this step")
            raise
        was_finite, self._finite = is_first or self._finite, is_finite(to_numpy(results[0]))
        self._accumulating, self._is_empty = True, False
        if self._moving:
            if was_finite:  # else the sums are not, whatever this step adds
                self._finite &= all(is_finite(flat.buffer) for flat in flats)
            if self._finite and all(is_finite(after) for _, after in self._moving.values()):
                for name, (_, after) in self._moving.items():
                    tensors[name][...] = after
        self._finite &= was_finite
        return results

    def _leave_out(
        self, session: BoundSession, names: Roles, shapes: Mapping[str, tuple[int, ...]]
    ) -> list[Any]:
        """An empty batch: it has no loss, adds nothing to the gradients and changes nothing."""
        if self.training:
            self._is_empty |= not self._accumulating
            for name in names.fed_with_gradients:
                self.input_gradients[name] = np.zeros(shapes[name], session.inputs[name].dtype)
        outputs = (session.outputs[name] for name in names.outputs)
        found = empty_results(outputs, shapes, (session.inputs[name] for name in names.inputs))
        return [array if array.dtype.kind == "O" else to_ort(array) for array in found]

    def _has_finite_gradients(self) -> bool:
        """Whether all losses and gradients since the last reset are finite."""
        gradients = self._state._state.gradients
        assert gradients is not None
        return self._finite and all(is_finite(f.buffer) for f in gradients.flats.values())

    def _bind_input_gradients(
        self, session: BoundSession, names: Roles, feeds: Mapping[str, Any]
    ) -> None:
        """Gradients of fed values, where the artifacts have any: each step has its own."""
        for name in names.fed_with_gradients:
            fed = to_numpy(feeds[name])
            self.input_gradients[name] = np.zeros(fed.shape, fed.dtype)
            session.bind_input(names.buffers[name], self.input_gradients[name])
            session.bind_output(names.sums[name], self.input_gradients[name])

    def _one_buffer(self, trainable_only: bool) -> Array:
        buffer = self._state._state.flatten(trainable_only)
        if buffer is None or not buffer.size:
            raise OptionError(
                "one buffer holds float32 parameters, and there are none\n"
                "take each from state.parameters"
            )
        return buffer


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape()) if is_ort(value) else value.shape


def _run(session: BoundSession, outputs: Sequence[str]) -> list[Any]:
    try:
        return session.run(outputs)
    except NodeFailed as error:
        raise index_refusal(error) or error from error.__cause__


def _options(given: Any) -> SessionOptions:
    """The user's options; without any, onnxruntime says nothing beside the error it raises.

    The threads of one graph leave the cores to those of the next, and denormals are zero where
    they are slow: both as in a TrainingSession.
    """
    options = SessionOptions(log_severity_level=4) if given is None else SessionOptions.of(given)
    return without(taking_turns(options))


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
