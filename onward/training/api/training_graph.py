"""Open a training model: the session's graph in its metadata, or the model's own graph."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import InvalidModel, OnwardError
from onward.graph.paths import check_readable
from onward.graph.scan.file_metadata import graph_checksum, metadata_of
from onward.programs.program import LOSS, Array, Layout, Settings, TrainableParameter
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import CPU, Argument, BoundSession, to_numpy
from onward.providers.ort.processors import find_processor
from onward.providers.ort.session import ProviderList
from onward.providers.ort.training.bound_graph import BoundGraph, OrtGraph
from onward.providers.ort.training.lowered import MEASURE, NOISE, LoweredProgram
from onward.providers.ort.training.metadata_encoding import (
    UNREADABLE,
    decompress_graph,
    unpack,
    unreadable_error,
)
from onward.training.api.graph_roles import (
    BUFFER,
    RESET,
    SUM,
    Roles,
    find_roles,
    read_label_ranges,
    read_names,
    type_and_shape,
)
from onward.training.api.graph_sessions import TRAIN, open_graph
from onward.training.api.training_state import TrainingState

STEP = "onward.step"  # a key of metadata


def open_training(
    uri: str | os.PathLike[str],
    known: Container[str],
    options: SessionOptions,
    providers: ProviderList,
) -> tuple[BoundGraph, Roles]:
    """Open a training model; `known` are the parameters of the checkpoint."""
    check_readable(Path(uri))
    model = Path(uri).read_bytes()
    metadata = {} if model[4:8] == b"ORTM" else metadata_of(model)  # onnxruntime's own format
    packed = unpack(metadata, STEP)
    if packed is not None and packed.get("graph") == graph_checksum(
        model
    ):  # the model is unchanged
        try:
            return _open_packed(packed, metadata, options, providers)
        except UNREADABLE as error:
            if not isinstance(error, OnwardError):
                raise unreadable_error(STEP, error) from error
        except OnwardError:  # an onnxruntime that lacks some of its operators
            pass
    del model
    session = open_graph(uri, options, providers)
    roles = find_roles(session, known)
    if not roles.gradients and not roles.input_gradients:
        raise InvalidModel(
            f"{os.fspath(uri)!r} is not a training model: it has no gradients\n"
            "make it with onward.training.artifacts.generate_artifacts"
        )
    return SummingGraph(session, roles), roles


def _open_packed(
    packed: Mapping[str, Any],
    metadata: Mapping[str, str],
    options: SessionOptions,
    providers: ProviderList,
) -> tuple[BoundGraph, Roles]:
    inputs = read_names(metadata, "onward.inputs")
    size = packed["noise_size"]
    if options.native is None and not packed["plans_memory"]:
        # a memory plan is held from the first node to the last: it costs too much memory here
        options = replace(options, enable_mem_pattern=False)
    session = open_graph(_fastest_train(packed, providers), options, providers)
    held = [name for name in session.inputs if name not in inputs and name != NOISE]
    roles = Roles(
        inputs=tuple(inputs),
        labels=read_label_ranges(metadata),
        parameters={name: type_and_shape(session.inputs[name]) for name in held},
        outputs=tuple(packed["outputs"]),
        output_names=tuple(packed["output_names"]),
        gradients=dict(packed["gradients"]),
        input_gradients=dict(packed["input_gradients"]),
        state=dict(packed["state"]),
        loss_dtype=str(packed["loss_dtype"]),
        squared=bool(packed["squared"]),
        noise_size=None if size is None else decompress_graph(size),
        noise_by_shape=bool(packed["noise_by_shape"]),
    )
    return OrtGraph(session), roles


def _fastest_train(packed: Mapping[str, Any], providers: ProviderList) -> bytes:
    """The train graph in the form for this machine's processor, if there is one."""
    on_cpu = [name for name, _ in providers] == [name for name, _ in CPU]
    for processor, own in packed.get("faster", {}).items() if on_cpu else ():
        if find_processor(decompress_graph(own["probe"])) == processor:
            return decompress_graph(own["train"])
    return decompress_graph(packed["train"])


def layout_of(roles: Roles) -> Layout:
    """The layout of a training graph, without updates and initial contents."""
    extra = dict.fromkeys((*roles.outputs, *roles.input_gradients.values()))
    return Layout(
        parameters=tuple(
            TrainableParameter(name=name, shape=roles.parameters[name][1], gradient=gradient)
            for name, gradient in roles.gradients.items()
        ),
        updates=(),
        state=roles.state,
        frozen=(),
        inputs=(),
        targets=roles.inputs,  # the sizes of each are checked against those before it
        outputs=tuple(name for name in extra if name != LOSS),
        model_outputs=(),
        labels=roles.labels,
        settings=Settings(
            accumulate=1,
            clip_norm=None,
            skip_nonfinite=True,
            seed=0,
            scaled=False,
            loss_scale=None,
            schedule=None,
            learning_rate=0.0,
            loss_dtype=roles.loss_dtype,
            averaged=False,
        ),
        initial={},
    )


def program_of(roles: Roles, state: TrainingState) -> LoweredProgram:
    """The program of a training graph and of the state's updates."""
    updates, layout = state.updates, layout_of(roles)
    clip = None if updates is None else updates.clip_norm
    settings = replace(layout.settings, clip_norm=clip, scaled=clip is not None)
    return LoweredProgram(
        layout=replace(layout, updates=state.update_layouts(layout), settings=settings),
        train=TRAIN,
        evaluate=b"",
        predict=b"",
        probe=b"",
        step=None,
        noise_size=roles.noise_size,
        noise_by_shape=roles.noise_by_shape,
        plans_memory=True,
        updates=() if updates is None else updates.graphs,
    )


class SummingGraph:
    """A training model's own graph, which overwrites its gradient sums at every run."""

    def __init__(self, session: BoundSession, roles: Roles) -> None:
        self._session, self._roles = session, roles
        self._loss: Array = np.zeros(())
        session.bind_input(RESET, np.array([True]))

    def arguments(self) -> Sequence[Any]:
        shown = (*self._roles.inputs, *self._roles.parameters)
        return [self._session.inputs[name] for name in shown]

    def results(self) -> Sequence[Any]:
        loss = Argument(LOSS, self._session.outputs[self._roles.outputs[0]].type, ())
        return [loss, *self._session.outputs.values()]

    def bind_input(self, name: str, array: Array) -> None:
        self._session.bind_input(name, array)
        if name in self._roles.input_gradients:
            self._session.bind_input(name + BUFFER, np.zeros_like(array))

    def bind_output(self, name: str, array: Array) -> None:
        if name == LOSS:
            self._loss = array
        elif name == MEASURE:
            array[...] = np.nan  # not measured: readers then compute it from the gradients
        else:
            self._session.bind_output(name, array)
            if name.endswith(SUM):  # its old contents are not read
                self._session.bind_input(name.removesuffix(SUM) + BUFFER, array)

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        loss, *others = map(to_numpy, self._session.run([self._roles.outputs[0], *wanted]))
        self._loss[...] = loss.sum()
        return others
