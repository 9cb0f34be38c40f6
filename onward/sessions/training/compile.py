"""compile_training: model + loss + optimizer -> TrainingProgram."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.gradients.model import extend as differentiate
from onward.gradients.model import lift_weights
from onward.gradients.table import GRADIENTS
from onward.graph.extension import GraphOps, extend
from onward.graph.files import Source, load
from onward.graph.protos import holds_map
from onward.losses.combined import build_with_parts
from onward.losses.loss import Loss
from onward.optimizers.groups import Assignment, resolve
from onward.optimizers.optimizer import Optimizer
from onward.passes.linear_models import write_linear_models
from onward.passes.modes import eval_mode, train_mode, untie_statistics
from onward.passes.native import fuse_for_onnxruntime
from onward.passes.noise import left_random, take_noise
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.prune import drop_unused
from onward.passes.spelling import spell_for_onnxruntime
from onward.passes.zip_maps import unzipped
from onward.sessions.training.constant_weights import lift_constant_weights
from onward.sessions.training.exporter_changes import warn_of_exporter
from onward.sessions.training.labels import find_labels, promised_labels
from onward.sessions.training.merging import merge
from onward.sessions.training.one_run import one_run
from onward.sessions.training.options import TrainingOptions
from onward.sessions.training.own_state import check_state, return_state
from onward.sessions.training.probe_graph import probe_graph
from onward.sessions.training.program import (
    LOSS,
    MEASURE,
    NOISE,
    SCALE,
    Parameter,
    TrainingProgram,
)
from onward.sessions.training.ranges import LabelRange
from onward.sessions.training.restoring import Guesses, restore
from onward.sessions.training.selection import (
    batch_norms,
    distinct,
    free_weights,
    initializers,
    nothing_to_train,
    select,
    weights,
)
from onward.sessions.training.tensors import Tensors
from onward.sessions.training.update_graphs import is_scaled, update_graphs

_MANY_NODES = 100  # of a graph that takes so long that allocating its tensors one by one is nothing

log = logging.getLogger("onward")


def compile_training(
    model: Source,
    loss: Loss | None,
    optimizer: Optimizer | None,
    options: TrainingOptions | Mapping[str, Any] | None = None,
) -> TrainingProgram:
    """What a TrainingSession runs: graphs for the step, for evaluation and for updates."""
    settings = TrainingOptions.of(options)
    if loss is None or optimizer is None:
        missing = "loss" if loss is None else "optimizer"
        raise OptionError(
            f"a training session needs a model, a loss and an optimizer; it has no {missing}\n"
            "for example: TrainingSession(model, losses.CrossEntropy(), optimizers.AdamW())"
        )
    source = load(model, any_domain=True)
    base = _Base.of(source, loss, settings)
    check_state(base.model, settings.state)
    assignments = _assigned(base, optimizer, settings)
    names = [name for each in assignments for name in each.names]
    untie_statistics(base.model)
    train = base.model.clone()
    frozen = batch_norms(train, settings.frozen_batch_norms)
    state = train_mode(train, frozen, unbiased=settings.unbiased_variance)
    state |= return_state(train, settings.state)
    evaluated, predicted = eval_mode(base.model.clone()), eval_mode(_own(base))
    size = take_noise(train, NOISE)
    fed = Tensors.of(base.model, names, list(state))
    fed.open(train)
    gradients = _differentiate(train, names, settings)
    if len(gradients) < len(names):
        fed = fed.only(list(gradients), base.model, train)
    warn_of_exporter(base.model, gradients, base.guesses)
    for graph in (evaluated, predicted):
        fed.open(graph)
    program = _graphs(base, fed, state, gradients, train, evaluated, predicted)
    program["settings"] = {**_settings(base, settings), "learning_rate": optimizer.lr}
    program["noise_size"] = None if size is None else _finished(size)
    program["settings"]["noise_by_shape"] = size is None or _reads_shapes_alone(size)
    updates = update_graphs([_kept(each, gradients) for each in assignments], fed.trained, settings)
    tensors = all(isinstance(value.type, ir.TensorType) for value in train.graph.outputs)
    in_one = settings.accumulate == 1 and settings.skip_nonfinite and tensors
    program["settings"]["one_run"] = in_one
    program["settings"]["plans_memory"] = len(train.graph) < _MANY_NODES
    program["step"], program["probe"] = None, probe_graph()
    if in_one:
        program["step"] = one_run(program["train"], updates, settings.clip_norm)
    elif tensors:  # branches have no sequences
        program["step"] = merge(program["train"], [update.bound for update in updates])
    return TrainingProgram(
        **program, updates=updates, initial=fed.initial, model=base.restored, labels=base.labels
    )


def _assigned(base: _Base, optimizer: Optimizer, settings: TrainingOptions) -> list[Assignment]:
    """The parameters, and who updates them."""
    chosen = select(base.model, base.weights, base.loss, settings.trainable, settings.frozen)
    shapes = _shapes(base.model, chosen)
    found = [each for each in resolve(optimizer, settings.groups, shapes) if each.optimizer]
    if not found:
        raise OptionError("there is nothing to train: every parameter is in a frozen group")
    return found


def _kept(assignment: Assignment, names: Collection[str]) -> Assignment:
    return assignment._replace(names=[name for name in assignment.names if name in names])


def _own(base: _Base) -> ir.Model:
    """The model as it was, without a loss: it returns what it returned."""
    model = base.model.clone()
    model.graph.outputs[:] = [_find(model, name) for name in base.own_outputs]
    return model


def _shapes(model: ir.Model, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    lift_weights(model, names)
    values = [model.graph.initializers[name] for name in names]
    return {_name(v): tuple(v.const_value.shape.numpy()) for v in values if v.const_value}


@dataclass
class _Base:
    """The prepared model with its loss, and what it takes and gives."""

    model: ir.Model
    loss: ir.Value
    inputs: list[str]
    targets: list[str]
    own_outputs: list[str]
    outputs: list[str]
    labels: tuple[LabelRange, ...]
    weights: list[str]  # that may be trained
    restored: ir.Model  # as it was, its parameters as they were before it was exported
    guesses: Guesses

    @classmethod
    def of(cls, source: ir.Model, loss: Loss, settings: TrainingOptions) -> _Base:
        _check_inputs(source)
        model = lift_constant_weights(free_weights(source.clone()), _named(settings))
        model = distinct(model)
        guesses = restore(model, apart=settings.trainable or (), tied=settings.tied)
        restored = model.clone()
        model = write_linear_models(model)
        carried = set(initializers(model))  # not what lies in Constant nodes
        model = untie_statistics(PREPARE(model))
        known = [name for name in weights(model, carried) if name not in settings.state]
        graph = model.graph
        inputs = [_name(value) for value in graph.inputs]
        own = list(dict.fromkeys(map(unzipped, graph.outputs)))
        op = extend(model)
        values = {_name(value): value for value in (*own, *_values(model))}
        made, parts = build_with_parts(loss, op, values)
        if made.shape is None or any(size != 1 for size in made.shape):
            made = op.ReduceSum(made, keepdims=0)
        elif len(made.shape):
            made = op.Reshape(made, np.zeros(0, np.int64))
        if made.name != LOSS or not made.is_graph_output():
            made = _named_loss(op.Identity(made), values)
        asked = [_name(v) for v in own if _name(v) != LOSS]
        if settings.outputs is not None:
            asked = list(dict.fromkeys(settings.outputs))
            unknown = [name for name in asked if name not in values]
            if unknown:
                raise OptionError(f"outputs: the model has no value {unknown[0]!r}")
            asked = list(dict.fromkeys(_name(unzipped(values[name])) for name in asked))
        asked = [name for name in asked if values[name] is not made]
        shown = [values[name] for name in asked]
        for name, part in parts.items():
            part.name = f"{LOSS}.{name}"
            shown.append(part)
            asked.append(_name(part))
        graph.outputs[:] = [made, *shown]
        targets = [_name(v) for v in graph.inputs if _name(v) not in inputs]
        owns = [_name(value) for value in own]
        found = (*promised_labels(loss, values), *find_labels(model))
        labels = tuple({each.name: each for each in found}.values())
        return cls(model, made, inputs, targets, owns, asked, labels, known, restored, guesses)


def _named(settings: TrainingOptions) -> set[str]:
    """Every name that a user has written: Constants that have one of them are weights."""
    tied = [name for group in settings.tied or () for name in group]
    return {*(settings.trainable or ()), *settings.frozen, *settings.state, *tied}


def _check_inputs(model: ir.Model) -> None:
    """A step is fed with tensors."""
    for value in model.graph.inputs:
        if holds_map(value.type):
            raise UnsupportedModel(
                f"input {value.name!r} is a map: a training step takes tensors\n"
                "train the model that comes after it: what reads the map (DictVectorizer, CastMap) "
                "is run beforehand"
            )


def _named_loss(made: ir.Value, values: Mapping[str, ir.Value]) -> ir.Value:
    if LOSS in values:
        raise OptionError(
            f"the model has a value {LOSS!r} that is not the loss of this session\n"
            "rename it, or train on it: losses.Output('loss')"
        )
    made.name = LOSS
    return made


def _graphs(
    base: _Base,
    fed: Tensors,
    state: dict[str, str],
    gradients: dict[str, str],
    train: ir.Model,
    evaluated: ir.Model,
    predicted: ir.Model,
) -> dict[str, Any]:
    """The graphs as bytes, and what is said about them."""
    for name in left_random(train):
        log.warning(
            "%s is random inside a branch or a loop: a resumed run will not repeat it", name
        )
    _omit_inputs(drop_unused(predicted), [*base.inputs])
    return {
        "train": _finished(train),
        "evaluate": _finished(evaluated),
        "predict": _finished(predicted),
        "parameters": tuple(
            Parameter(name=name, shape=tuple(shape), gradient=gradients[name])
            for name, (_, shape) in fed.trained.items()
        ),
        "state": state,
        "frozen": tuple(fed.frozen),
        "inputs": tuple(base.inputs),
        "targets": tuple(base.targets),
        "outputs": tuple(base.outputs),
    }


def _settings(base: _Base, settings: TrainingOptions) -> dict[str, Any]:
    """What a session needs to know, as words and numbers."""
    scale = settings.loss_scale
    dynamic = None if scale is None or isinstance(scale, (int, float)) else scale
    found: dict[str, Any] = {
        "accumulate": settings.accumulate,
        "clip_norm": settings.clip_norm,
        "skip_nonfinite": settings.skip_nonfinite,
        "seed": settings.seed,
        "scaled": is_scaled(settings),
        "loss_scale": dataclasses.asdict(dynamic) if dynamic is not None else scale,
        "schedule": None if settings.schedule is None else settings.schedule.to_dict(),
        "loss_dtype": base.loss.dtype.numpy().name if base.loss.dtype else "float32",
        "model_outputs": base.own_outputs,
    }
    if settings.average is not None:
        found["average"] = True
    return found


def _differentiate(
    model: ir.Model, names: Sequence[str], settings: TrainingOptions
) -> dict[str, str]:
    """Add the gradients of the loss, and what they measure together; parameter -> gradient.

    What no gradient can reach (numbers that are compared, scales of Resize) is no parameter, unless
    it was asked for.

    With a limit on their length that is the sum of their squares; else their sum, which is as good
    to tell whether all are finite, in half the time.
    """
    cotangent = None if settings.loss_scale is None else SCALE
    rules = GRADIENTS if settings.rules is None else settings.rules
    by_default = settings.trainable is None
    gradients = differentiate(model, {LOSS: cotangent}, names, rules, omit_zeros=by_default)
    if not gradients:
        raise nothing_to_train(names)
    outputs = {_name(value): value for value in model.graph.outputs}
    measured = [outputs[name] for name in gradients.values()]
    op = extend(model)
    if settings.clip_norm is not None:
        parts = [op.ReduceSumSquare(g, keepdims=0) for g in measured]
        total = op.Sum(*(op.Cast(part, to=int(ir.DataType.FLOAT)) for part in parts))
    else:
        parts = [op.Cast(_rows(op, g), to=int(ir.DataType.FLOAT)) for g in measured]
        total = op.ReduceSum(op.Concat(*parts, axis=0), keepdims=0)
    measure = op.Identity(total)
    measure.name = MEASURE
    model.graph.outputs.append(measure)
    return gradients


def _rows(op: GraphOps, g: ir.Value) -> ir.Value:
    """The sums of a tensor's rows, which onnxruntime adds up side by side."""
    rank = 0 if g.shape is None else len(g.shape)
    if rank < 2:
        return g if rank else op.Reshape(g, [1])
    return op.ReduceSum(g, list(range(1, rank)), keepdims=0)


def _reads_shapes_alone(model: ir.Model) -> bool:
    """Whether feeds of the same shapes give the same result."""
    readers = (node for value in model.graph.inputs for node, _ in value.uses())
    return all(node.op_type in ("Shape", "Size") for node in readers)


def _finished(model: ir.Model) -> bytes:
    """Tidied, in the spelling that stock onnxruntime runs, as bytes."""
    model = fuse_for_onnxruntime(spell_for_onnxruntime(TRAINING(model)))
    data: bytes = ir.to_proto(model).SerializeToString()
    return data


def _omit_inputs(model: ir.Model, kept: Sequence[str]) -> None:
    """Remove the graph inputs that nobody reads, but for the model's own."""
    graph = model.graph
    used = [v for v in graph.inputs if v.uses() or v.is_graph_output() or _name(v) in kept]
    graph.inputs[:] = used


def _find(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in _values(model) if value.name == name)


def _values(model: ir.Model) -> list[ir.Value]:
    graph = model.graph
    made = (value for node in graph for value in node.outputs)
    return [v for v in (*graph.inputs, *graph.initializers.values(), *made) if v.name]


def _name(value: ir.Value) -> str:
    return str(value.name)
