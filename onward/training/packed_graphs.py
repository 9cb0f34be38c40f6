"""Store the graphs that a TrainingSession would run in the metadata of the artifacts' models.

The graphs of the artifacts are for any stock onnxruntime: an input adds up gradients, updates take
sequences. A device that has Onward runs faster graphs: the step and the updates of a session.
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
from onward.programs.label_ranges import LabelRange
from onward.programs.program import LOSS
from onward.programs.training_options import TrainingOptions
from onward.programs.update_graphs import build_updates
from onward.providers.ort.processor_probe import processor_probe
from onward.providers.ort.processors import PROCESSORS
from onward.providers.ort.training.fused_step_probe_graph import probe_graph
from onward.providers.ort.training.lowering import lower_train
from onward.providers.ort.training.metadata_encoding import compress_graph, pack, pack_updates
from onward.providers.ort.training.update_lowering import lower_update
from onward.training.api.optimizer_updates import UPDATES
from onward.training.api.training_graph import STEP

_MAX_WEIGHT_BYTES = 1 << 22  # a step with more weights is not stored a second time
_WIDE = ("float32", "float64")


@dataclass(frozen=True)
class GraphNames:
    """The names of a training graph's inputs, outputs and parameters."""

    inputs: list[str]  # the user's, targets last
    outputs: list[str]  # the user's, the loss first
    parameters: list[str]  # that are inputs, in the order of the initializers
    trained: list[str]  # parameters and inputs with a gradient
    inner: list[str]  # values of nodes with a gradient
    state: Mapping[str, str]  # parameter that the forward changes -> its next contents
    labels: list[LabelRange]


def pack_step(
    target: ir.Model, model: ir.Model, names: GraphNames, loss: str, squared: bool
) -> None:
    """Store the step of a model in training mode, whose parameters are inputs, in the metadata.

    `loss` is the scalar to differentiate. Nothing is stored where a session would keep parameters
    in another type than the artifacts do, or where large weights would be stored twice.
    """
    parameters = [name for name in names.trained if name in names.parameters]
    inputs = [name for name in names.trained if name in names.inputs]
    values = {str(value.name): value for value in model.graph.inputs}
    kinds = {values[name].dtype for name in parameters}
    wide = kinds and all(k is not None and k.numpy().name in _WIDE for k in kinds)
    tensors = all(isinstance(value.type, ir.TensorType) for value in model.graph.outputs)
    named = LOSS in {*values, *model.graph.initializers}
    if not wide or not tensors or named or weight_bytes(model) > _MAX_WEIGHT_BYTES:
        return
    draws = prepare_training_graph(model, ())
    sources = [*parameters, *inputs, *names.inner]
    gradients = extend(model, {loss: None}, sources, GRADIENTS, composites=True)
    loss_dtype, outputs = _set_outputs(model, names, loss, gradients)
    own = {name: gradients[name] for name in parameters}
    copies = {processor: model.clone() for processor in PROCESSORS}
    lowered = lower_train(model, draws, list(own.values()), squared=squared)
    size = lowered.noise_size
    faster = {}
    for name, copy in copies.items():
        train = lower_train(copy, draws, list(own.values()), squared=squared, processor=name).train
        if train != lowered.train:
            probe = compress_graph(processor_probe())
            faster[name] = {"probe": probe, "train": compress_graph(train)}
    target.metadata_props[STEP] = pack(
        {
            "graph": graph_checksum(bytes(ir.to_proto(target).SerializeToString())),
            "train": compress_graph(lowered.train),
            "faster": faster,
            "gradients": own,
            "input_gradients": {name: gradients[name] for name in inputs},
            "outputs": outputs,
            "output_names": [str(v.name) for v in target.graph.outputs[: len(outputs)]],
            "state": dict(names.state),
            "loss_dtype": loss_dtype,
            "squared": squared,
            "noise_size": None if size is None else compress_graph(size),
            "noise_by_shape": lowered.noise_by_shape,
            "plans_memory": lowered.plans_memory,
        }
    )


def _set_outputs(
    model: ir.Model, names: GraphNames, loss_name: str, gradients: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Let the graph return the loss as LOSS, the user's outputs, gradients and state.

    Returns the type of the loss, and the new names of the user's outputs.
    """
    graph, op = model.graph, extension(model)
    values = {str(value.name): value for value in graph.outputs}
    loss = values[loss_name]
    assert loss.dtype is not None
    for value in [value for node in graph for value in node.outputs]:
        if value.name == LOSS and value is not loss:
            value.name = Names(model).fresh(f"{LOSS}.own")
    loss.name = LOSS
    bound = names.state.values()  # to the store's memory: the user gets a copy
    outputs = [op.Identity(values[n]) if n in bound else values[n] for n in names.outputs]
    outputs += [values[gradients[name]] for name in names.inner]
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
    """Store the updates that a session would run in an optimizer model's metadata.

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
            "probe": compress_graph(probe_graph()),
        }
    )
