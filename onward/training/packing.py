"""Packing: the graphs that a TrainingSession would run, in the metadata of the artifacts' models.

The graphs of the artifacts are for any stock onnxruntime: gradients are summed by an input, updates
take sequences. A device that has Onward runs faster ones, which `onward.training.api` unpacks: the
step as it is lowered for a session, without the weights that the training model holds anyway, and
the updates over flat vectors.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
import onnx_ir as ir

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.extension import extend as extension
from onward.graph.extension import taken_names
from onward.graph.files import weight_bytes
from onward.graph.naming import rename
from onward.optimizers.clip import ClipByNorm
from onward.optimizers.groups import Assignment
from onward.passes.composites import inline_calls
from onward.passes.noise import take_noise
from onward.passes.rewrite import Names
from onward.programs.options import TrainingOptions
from onward.programs.program import LOSS
from onward.programs.update_graphs import build_updates
from onward.providers.ort.training.lowered import NOISE
from onward.providers.ort.training.lowering import (
    add_measure,
    reads_shapes_alone,
    respell,
    to_bytes,
)
from onward.providers.ort.training.probe_graph import probe_graph
from onward.providers.ort.training.updates import lower_update
from onward.training.api.packed import STEP, UPDATES, checksum, dump, press

_SMALL = 1 << 10  # bytes of a weight that is packed whatever the training model holds
_MOST = 1 << 20  # bytes of weights that are packed at most: the others are the training model's
_MOST_HELD = 1 << 30  # bytes of weights of a training model that is one message
_WIDE = ("float32", "float64")

log = logging.getLogger("onward")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a step returns, by the names of the model that it is made of."""

    loss: str  # the value that is differentiated: one number
    outputs: Sequence[str]  # the user's, the loss first
    parameters: Sequence[str]  # that are trained
    inputs: Sequence[str]  # of the user's, those whose gradients were asked for
    inner: Sequence[str]  # what nodes make whose gradients were asked for
    state: Mapping[str, str]  # parameter that the forward changes -> its next contents


def pack_step(target: ir.Model, model: ir.Model, wanted: Wanted, squared: bool) -> None:
    """Put the step of a model in training mode, whose parameters are inputs, into the metadata.

    Nothing where a session would keep parameters in another type than the artifacts do, where the
    step has large weights that the training model has not, or where weights will lie in files.
    """
    if weight_bytes(target) > _MOST_HELD:
        return
    values = {str(value.name): value for value in model.graph.inputs}
    kinds = {values[name].dtype for name in wanted.parameters}
    wide = kinds and all(k is not None and k.numpy().name in _WIDE for k in kinds)
    tensors = all(isinstance(value.type, ir.TensorType) for value in model.graph.outputs)
    if not wide or not tensors or LOSS in {*values, *model.graph.initializers}:
        return
    draws = take_noise(model, NOISE)
    sources = [*wanted.parameters, *wanted.inputs, *wanted.inner]
    gradients = extend(model, {wanted.loss: None}, sources, GRADIENTS, composites=True)
    loss_dtype, outputs = _return(model, wanted, gradients)
    step = inline_calls(model)
    add_measure(step, [gradients[name] for name in wanted.parameters], squared)
    step = respell(step)
    shared = _shared_weights(step, target)
    if shared is None:
        return
    proto = ir.to_proto(step)
    own = [tensor for tensor in proto.graph.initializer if tensor.name not in shared]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(own)
    returned = [*outputs, *(gradients[name] for name in wanted.inner)]
    target.metadata_props[STEP] = dump(
        {
            "of": checksum(bytes(ir.to_proto(target).SerializeToString())),
            "train": press(proto.SerializeToString()),
            "weights": shared,
            "parameters": {name: gradients[name] for name in wanted.parameters},
            "input_gradients": {name: gradients[name] for name in wanted.inputs},
            "outputs": returned,
            "output_names": [str(v.name) for v in target.graph.outputs[: len(returned)]],
            "state": dict(wanted.state),
            "loss_dtype": loss_dtype,
            "squared": squared,
            "noise_size": None if draws is None else press(to_bytes(respell(draws))),
            "noise_by_shape": draws is None or reads_shapes_alone(draws),
        }
    )


def _return(model: ir.Model, wanted: Wanted, gradients: Mapping[str, str]) -> tuple[str, list[str]]:
    """Let the graph return the loss as LOSS, what the user asked for, gradients and state.

    The type of the loss, and the names that the user's outputs have now.
    """
    graph, op = model.graph, extension(model)
    values = {str(value.name): value for value in graph.outputs}
    loss = values[wanted.loss]
    assert loss.dtype is not None and loss.shape is not None
    scalar = op.Reshape(loss, np.zeros(0, np.int64)) if len(loss.shape) else loss
    for node in graph:
        for value in node.outputs:
            if value.name == LOSS and value is not scalar:
                value.name = Names(model).fresh(f"{LOSS}.own")
    scalar.name = LOSS
    outputs = []
    for name in wanted.outputs:
        if name in wanted.state.values():  # what is bound to memory is not returned as well
            outputs.append(op.Identity(values[name]))
        else:
            outputs.append(values[name])
    kept = [*wanted.state.values(), *gradients.values()]
    listed = dict.fromkeys((scalar, *outputs, *(values[name] for name in kept)))
    graph.outputs[:] = list(listed)
    return loss.dtype.numpy().name, [str(value.name) for value in outputs]


def _shared_weights(step: ir.Model, target: ir.Model) -> list[str] | None:
    """The weights of a step that the training model has, under its names now; None: too few are."""
    held = {
        _contents(value): name
        for name, value in target.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes >= _SMALL
    }
    taken, shared, left = taken_names(step), [], 0
    for name, value in list(step.graph.initializers.items()):
        if value.const_value is None or value.const_value.nbytes < _SMALL:
            continue
        same = held.get(_contents(value))
        if same is None or (same != name and same in taken):
            left += value.const_value.nbytes
            continue
        rename(value, same)
        taken.add(same)
        shared.append(same)
    if left > _MOST:
        log.debug("no step is packed: %d bytes of its weights are its own", left)
        return None
    return shared


def _contents(value: ir.Value) -> tuple[object, ...]:
    assert value.const_value is not None
    tensor = value.const_value
    return tensor.dtype, tuple(tensor.shape.numpy()), sha256(tensor.tobytes()).digest()


def pack_updates(
    target: ir.Model,
    assignments: Sequence[Assignment],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    sequences: Mapping[str, str],
    clip: ClipByNorm | None,
) -> None:
    """Put the updates that a session would run into an optimizer model's metadata."""
    if dtype not in _WIDE or any(each.optimizer is None for each in assignments):
        return
    options = TrainingOptions(clip_norm=None if clip is None else clip.max_norm)
    specs = {name: (dtype, shape) for name, shape in shapes.items()}
    models, layouts = build_updates(assignments, specs, options)
    updates = []
    for model, layout in zip(models, layouts):
        lowered = lower_update(model, layout.flat)
        updates.append(
            {
                "layout": dataclasses.asdict(layout),
                "graph": press(lowered.graph),
                "bound": press(lowered.bound),
                "blocks": lowered.blocks,
            }
        )
    target.metadata_props[UPDATES] = dump(
        {
            "updates": updates,
            "sequences": dict(sequences),
            "clip_norm": options.clip_norm,
            "probe": press(probe_graph()),
        }
    )
