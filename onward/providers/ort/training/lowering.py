"""Lower a training program to stock onnxruntime: supported operators, a fused step, updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onward.graph.graph_ops import GraphOps, extend
from onward.graph.operators import SHAPE_ONLY
from onward.passes.composites import inline_calls
from onward.passes.fed_uniforms import feed_uniforms
from onward.passes.memory_functions import is_barrier, runs_in_order
from onward.passes.ort_workarounds import apply_ort_workarounds
from onward.passes.pipelines import TRAINING
from onward.passes.random_draws import Draws
from onward.programs.program import Program
from onward.providers.ort.processor_probe import processor_probe
from onward.providers.ort.processors import ANY, PROCESSORS
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime
from onward.providers.ort.training.fused_step import fuse_step
from onward.providers.ort.training.fused_step_probe_graph import probe_graph
from onward.providers.ort.training.lowered import MEASURE, NOISE, FasterGraphs, LoweredProgram
from onward.providers.ort.training.update_lowering import lower_update

_LARGE_GRAPH = 16 << 20  # bytes: weights that are not trained are not saved again
_MANY_NODES = 100  # of a graph: above, the memory pattern costs more memory than it saves time


@dataclass(frozen=True)
class LoweredTrain:
    """The lowered train graph of a program, and the fields of LoweredProgram that depend on it."""

    train: bytes
    noise_size: bytes | None
    noise_by_shape: bool
    plans_memory: bool
    gives_tensors: bool  # whether all outputs are tensors


def lower_program(
    program: Program, processor: str = ANY, *, draws_in_graph: bool = False
) -> LoweredProgram:
    """Lower a program to stock onnxruntime; the program itself is not changed.

    `processor` is one of processors.py: the result is the fastest there, and may not run on others;
    the result for ANY runs everywhere. `draws_in_graph`: steps draw the random numbers that torch
    draws, in the graph, which takes longer than feeding others.
    """
    layout, settings = program.layout, program.layout.settings
    gradients = [p.gradient for p in layout.parameters]
    clips = settings.clip_norm is not None
    ordered = any(map(runs_in_order, program.train.graph))
    draws = None if draws_in_graph else program.draws
    lowered = lower_train(
        program.train.clone(), draws, gradients, squared=clips, processor=processor
    )
    flat = [update.flat for update in layout.updates]
    updates = tuple(map(lower_update, program.updates, flat))
    in_one = settings.accumulate == 1 and settings.skip_nonfinite and lowered.gives_tensors
    return LoweredProgram(
        layout=layout,
        train=lowered.train,
        evaluate=_serialize(inline_calls(program.evaluate.clone())),
        predict=_serialize(inline_calls(program.predict.clone())),
        probe=probe_graph(),
        step=fuse_step(lowered.train, updates, flat) if in_one else None,
        noise_size=lowered.noise_size,
        noise_by_shape=lowered.noise_by_shape,
        plans_memory=lowered.plans_memory and not ordered,
        updates=updates,
        keeps_order=ordered,
    )


def lower_for_every_processor(program: Program) -> LoweredProgram:
    """A program for ANY processor that carries the graphs that are faster on some of them."""
    lowered, faster = lower_program(program), {}
    for processor in PROCESSORS if len(lowered.train) < _LARGE_GRAPH else ():
        own = lower_program(program, processor)
        if own.train != lowered.train:
            faster[processor] = FasterGraphs(
                probe=processor_probe(), train=own.train, step=own.step
            )
    return replace(lowered, faster=faster)


def lower_train(
    model: ir.Model,
    draws: Draws | None,
    gradients: Sequence[str],
    *,
    squared: bool,
    processor: str = ANY,
) -> LoweredTrain:
    """Lower a train graph in place; `squared`: MEASURE is a sum of squares."""
    size = feed_uniforms(model, draws, NOISE)
    inline_calls(model, is_barrier)
    _add_measure(model, gradients, squared)
    tensors = all(isinstance(value.type, ir.TensorType) for value in model.graph.outputs)
    nodes, by_shape = len(model.graph), size is None or reads_shapes_alone(size)
    return LoweredTrain(
        train=_serialize(model, processor),
        noise_size=None if size is None else _serialize(size),
        noise_by_shape=by_shape,
        plans_memory=nodes < _MANY_NODES,
        gives_tensors=tensors,
    )


def lower_gradient_graph(model: ir.Model, processor: str = ANY) -> ir.Model:
    """Lower a graph with gradients in place: standard operators, in onnxruntime's fastest forms."""
    inline_calls(model, is_barrier)
    fused = fuse_for_onnxruntime(apply_ort_workarounds(TRAINING(model)), processor)
    return inline_calls(fused)


def _add_measure(model: ir.Model, gradients: Sequence[str], squared: bool) -> None:
    """Add the output MEASURE, which is finite only if all gradients are.

    The sum of their squares if updates clip by norm; else their sum, which takes half the time.
    """
    outputs = {str(value.name): value for value in model.graph.outputs}
    measured = [outputs[name] for name in gradients]
    op = extend(model)
    op.prefix = "measure"
    if squared:
        parts = [op.ReduceSumSquare(g, keepdims=0) for g in measured]
        total = op.Sum(*(op.Cast(part, to=int(ir.DataType.FLOAT)) for part in parts))
    else:
        parts = [op.Cast(_row_sums(op, g), to=int(ir.DataType.FLOAT)) for g in measured]
        total = op.ReduceSum(op.Concat(*parts, axis=0), keepdims=0)
    measure = op.Identity(total)
    measure.name = MEASURE
    model.graph.outputs.append(measure)


def _row_sums(op: GraphOps, g: ir.Value) -> ir.Value:
    """The sums of a tensor's rows, which onnxruntime computes in parallel."""
    rank = 0 if g.shape is None else len(g.shape)
    if rank < 2:
        return g if rank else op.Reshape(g, [1])
    sums: ir.Value = op.ReduceSum(g, list(range(1, rank)), keepdims=0)
    return sums


def reads_shapes_alone(model: ir.Model) -> bool:
    """Whether the result depends only on the shapes of the inputs."""
    readers = (node for value in model.graph.inputs for node, _ in value.uses())
    return all(node.op_type in SHAPE_ONLY for node in readers)


def _serialize(model: ir.Model, processor: str = ANY) -> bytes:
    """Optimize a graph, rewrite it for stock onnxruntime, and serialize it.

    Barriers come last: they keep recomputed values separate while the graph is optimized.
    """
    model = fuse_for_onnxruntime(apply_ort_workarounds(TRAINING(model)), processor)
    inline_calls(model)
    data: bytes = ir.to_proto(model).SerializeToString()
    return data
