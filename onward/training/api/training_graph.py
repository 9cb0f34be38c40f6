"""A training model as a step: the graph that is packed in it, or the model's own."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import InvalidModel, OnwardError
from onward.graph.paths import check_readable
from onward.programs.program import LOSS, Array, Layout, Parameter, Settings
from onward.programs.ranges import LabelRange
from onward.providers.options import SessionOptions
from onward.providers.ort.bound import Argument, BoundSession, to_numpy
from onward.providers.ort.session import ProviderList
from onward.providers.ort.training.graphs import BoundGraph, OrtGraph
from onward.providers.ort.training.lowered import MEASURE, NOISE, LoweredProgram
from onward.training.api.opening import TRAIN, open_graph
from onward.training.api.packed import PackedStep, metadata_of, read_step
from onward.training.api.roles import RESET, Roles, kind, labels_of, names_of, roles
from onward.training.api.state import Kinds, TrainingState

_SETTINGS = Settings(
    accumulate=1,
    clip_norm=None,
    skip_nonfinite=True,
    seed=0,
    scaled=False,
    loss_scale=None,
    schedule=None,
    learning_rate=0.0,
    loss_dtype="float32",
    averaged=False,
)


@dataclass(frozen=True)
class TrainingGraph:
    """A train graph that is open, and what its inputs and outputs are for."""

    graph: BoundGraph
    step: PackedStep  # without its bytes
    inputs: tuple[str, ...]  # what the user feeds, in order
    labels: tuple[LabelRange, ...]
    kinds: Kinds  # of the parameters

    @property
    def trainable(self) -> list[str]:
        return list(self.step.parameters)

    @property
    def layout(self) -> Layout:
        """The names of the graph; the state knows updates and contents."""
        extra = (*self.step.outputs, *self.step.input_gradients.values())
        return Layout(
            parameters=tuple(
                Parameter(name=name, shape=self.kinds[name][1], gradient=gradient)
                for name, gradient in self.step.parameters.items()
            ),
            updates=(),
            state=self.step.state,
            frozen=(),
            inputs=(),
            targets=self.inputs,  # each is compared with those before it
            outputs=tuple(name for name in dict.fromkeys(extra) if name != LOSS),
            model_outputs=(),
            labels=self.labels,
            settings=replace(_SETTINGS, loss_dtype=self.step.loss_dtype),
            initial={},
        )

    def program(self, state: TrainingState) -> LoweredProgram:
        """The program of this graph and of the updates that a state is laid out for."""
        updates, layout = state.updates, self.layout
        clip = None if updates is None else updates.clip_norm
        settings = replace(layout.settings, clip_norm=clip, scaled=clip is not None)
        return LoweredProgram(
            layout=replace(layout, updates=state.update_layouts(layout), settings=settings),
            train=TRAIN,
            evaluate=b"",
            predict=b"",
            probe=b"",
            step=None,
            noise_size=self.step.noise_size,
            noise_by_shape=self.step.noise_by_shape,
            plans_memory=True,
            updates=() if updates is None else updates.graphs,
        )


def open_training(
    uri: str | os.PathLike[str],
    known: Container[str],
    options: SessionOptions,
    providers: ProviderList,
) -> TrainingGraph:
    """Open a training model; `known` are the parameters of the checkpoint."""
    check_readable(Path(uri))
    model = Path(uri).read_bytes()
    if model[4:8] != b"ORTM":  # onnxruntime's own format, which it alone reads
        metadata = metadata_of(model)
        step = read_step(model, metadata)
        del model
        if step is not None and "onward.inputs" in metadata:
            try:
                return _packed(step, metadata, options, providers)
            except OnwardError:  # an engine that has not all of its operators: the own graph says
                pass
    return _own(uri, known, options, providers)


def _packed(
    step: PackedStep,
    metadata: Mapping[str, str],
    options: SessionOptions,
    providers: ProviderList,
) -> TrainingGraph:
    session = open_graph(step.train, options, providers)
    inputs = names_of(metadata, "onward.inputs")
    rest = [name for name in session.inputs if name not in inputs and name != NOISE]
    return TrainingGraph(
        graph=OrtGraph(session),
        step=replace(step, train=b""),
        inputs=tuple(inputs),
        labels=labels_of(metadata),
        kinds={name: kind(session.inputs[name]) for name in rest},
    )


def _own(
    uri: str | os.PathLike[str],
    known: Container[str],
    options: SessionOptions,
    providers: ProviderList,
) -> TrainingGraph:
    session = open_graph(uri, options, providers)
    names = roles(session, known)
    if not names.buffers:
        raise InvalidModel(
            f"{os.fspath(uri)!r} is not a training model: it has no gradients\n"
            "make it with onward.training.artifacts.generate_artifacts"
        )
    loss = session.outputs[names.outputs[0]]
    step = PackedStep(
        train=b"",
        parameters={name: names.sums[name] for name in names.trainable},
        input_gradients={name: names.sums[name] for name in names.fed_with_gradients},
        outputs=names.outputs,
        output_names=names.outputs,
        state=names.updated,
        loss_dtype=str(loss.dtype or "float32"),
        squared=False,
        noise_size=None,
        noise_by_shape=True,
    )
    return TrainingGraph(
        graph=SummingGraph(session, names),
        step=step,
        inputs=tuple(names.inputs),
        labels=tuple(names.labels),
        kinds={name: kind(session.inputs[name]) for name in names.parameters},
    )


class SummingGraph:
    """A training model's own graph, whose sums of gradients begin at every run."""

    def __init__(self, session: BoundSession, names: Roles) -> None:
        self._session, self._names = session, names
        self._buffers = {names.sums[name]: buffer for name, buffer in names.buffers.items()}
        self._loss: Array = np.zeros(())
        session.bind_input(RESET, np.array([True]))

    def arguments(self) -> Sequence[Any]:
        hidden = {RESET, *self._buffers.values()}
        return [each for name, each in self._session.inputs.items() if name not in hidden]

    def results(self) -> Sequence[Any]:
        loss = Argument(LOSS, self._session.outputs[self._names.outputs[0]].type, ())
        return [loss, *self._session.outputs.values()]

    def bind_input(self, name: str, array: Array) -> None:
        self._session.bind_input(name, array)
        if name in self._names.fed_with_gradients:
            self._session.bind_input(self._names.buffers[name], np.zeros_like(array))

    def bind_output(self, name: str, array: Array) -> None:
        if name == LOSS:
            self._loss = array
        elif name == MEASURE:
            array[...] = np.nan  # nobody has measured: whoever asks looks at the gradients
        else:
            self._session.bind_output(name, array)
            if name in self._buffers:  # it is not looked at
                self._session.bind_input(self._buffers[name], array)

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        loss, *others = map(to_numpy, self._session.run([self._names.outputs[0], *wanted]))
        self._loss[...] = loss.sum()
        return others
