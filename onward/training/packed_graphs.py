"""Packing: the graphs that a TrainingSession would run, in the metadata of the artifacts' models.

The graphs of the artifacts are for any stock onnxruntime: gradients are summed by an input, updates
take sequences. A device that has Onward runs faster ones: the step and the updates as they are
lowered for a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.files import weight_bytes
from onward.graph.graph_ops import extend as extension
from onward.graph.scan.file_metadata import graph_checksum
from onward.optimizers.clip import ClipByNorm
from onward.optimizers.groups import Assignment
from onward.passes.rewrite import Names
from onward.programs.build import prepare_training_graph
from onward.programs.options import TrainingOptions
from onward.programs.program import LOSS
from onward.programs.update_graphs import build_updates
from onward.providers.ort.training.fused_step_probe_graph import probe_graph
from onward.providers.ort.training.lowering import lower_train
from onward.providers.ort.training.metadata_encoding import pack, pack_updates, press
from onward.providers.ort.training.update_lowering import lower_update
from onward.training.api.optimizer_updates import UPDATES
from onward.training.api.training_graph import STEP

_MOST = 1 << 22  # bytes of weights in a step: one with more of them stays in its model alone
_WIDE = ("float32", "float64")


@dataclass(frozen=True)
class Wanted:
    """What a step returns, by the names of the model that it is made of."""

    loss: str  # the value that is differentiated: one number without axes
    outputs: Sequence[str]  # the user's, the loss first
    parameters: Sequence[str]  # that are trained
    inputs: Sequence[str]  # of the user's, those whose gradients were asked for
    inner: Sequence[str]  # what nodes make whose gradients were asked for
    state: Mapping[str, str]  # parameter that the forward changes -> its next contents


def pack_step(target: ir.Model, model: ir.Model, wanted: Wanted, squared: bool) -> None:
    """Put the step of a model in training mode, whose parameters are inputs, into the metadata.

    Nothing where a session would keep parameters in another type than the artifacts do, or where
    the step would hold large weights a second time.
    """
    values = {str(value.name): value for value in model.graph.inputs}
    kinds = {values[name].dtype for name in wanted.parameters}
    wide = kinds and all(k is not None and k.numpy().name in _WIDE for k in kinds)
    tensors = all(isinstance(value.type, ir.TensorType) for value in model.graph.outputs)
    named = LOSS in {*values, *model.graph.initializers}
    if not wide or not tensors or named or weight_bytes(model) > _MOST:
        return
    draws = prepare_training_graph(model, ())
    sources = [*wanted.parameters, *wanted.inputs, *wanted.inner]
    gradients = extend(model, {wanted.loss: None}, sources, GRADIENTS, composites=True)
    loss_dtype, outputs = _return(model, wanted, gradients)
    own = {name: gradients[name] for name in wanted.parameters}
    lowered = lower_train(model, draws, list(own.values()), squared=squared)
    size = lowered.noise_size
    target.metadata_props[STEP] = pack(
        {
            "graph": graph_checksum(bytes(ir.to_proto(target).SerializeToString())),
            "train": press(lowered.train),
            "gradients": own,
            "input_gradients": {name: gradients[name] for name in wanted.inputs},
            "outputs": outputs,
            "output_names": [str(v.name) for v in target.graph.outputs[: len(outputs)]],
            "state": dict(wanted.state),
            "loss_dtype": loss_dtype,
            "squared": squared,
            "noise_size": None if size is None else press(size),
            "noise_by_shape": lowered.noise_by_shape,
            "plans_memory": lowered.plans_memory,
        }
    )


def _return(model: ir.Model, wanted: Wanted, gradients: Mapping[str, str]) -> tuple[str, list[str]]:
    """Let the graph return the loss as LOSS, what the user asked for, gradients and state.

    The type of the loss, and the names that the user's outputs have now.
    """
    graph, op = model.graph, extension(model)
    values = {str(value.name): value for value in graph.outputs}
    loss = values[wanted.loss]
    assert loss.dtype is not None
    for value in [value for node in graph for value in node.outputs]:
        if value.name == LOSS and value is not loss:
            value.name = Names(model).fresh(f"{LOSS}.own")
    loss.name = LOSS
    bound = wanted.state.values()  # to memory: the user gets a copy
    outputs = [op.Identity(values[n]) if n in bound else values[n] for n in wanted.outputs]
    outputs += [values[gradients[name]] for name in wanted.inner]
    kept = [values[name] for name in (*bound, *gradients.values())]
    graph.outputs[:] = list(dict.fromkeys((loss, *outputs, *kept)))
    return loss.dtype.numpy().name, [str(value.name) for value in outputs]


def pack_session_updates(
    target: ir.Model,
    assignments: Sequence[Assignment],
    specs: Mapping[str, tuple[str, tuple[int, ...]]],
    sequences: Mapping[str, str],
    clip: ClipByNorm | None,
) -> None:
    """Put the updates that a session would run into an optimizer model's metadata.

    `sequences` are the names that slots have in the artifacts.
    """
    if any(dtype not in _WIDE for dtype, _ in specs.values()):
        return
    if any(each.optimizer is None for each in assignments):
        return
    options = TrainingOptions(clip_norm=None if clip is None else clip.max_norm)
    models, layouts = build_updates(assignments, specs, options)
    lowered = [lower_update(model, layout.flat) for model, layout in zip(models, layouts)]
    target.metadata_props[UPDATES] = pack(
        {
            "updates": pack_updates(layouts, lowered),
            "sequences": dict(sequences),
            "clip_norm": options.clip_norm,
            "probe": press(probe_graph()),
        }
    )
