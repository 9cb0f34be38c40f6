"""build_program: compile a model, a loss and an optimizer to a Program."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.gradients.model import extend as differentiate
from onward.gradients.model import lift_weights
from onward.gradients.stop_gradient import restore_operators
from onward.gradients.table import GRADIENTS
from onward.graph.files import Source, load
from onward.graph.graph_ops import GraphOps, extend
from onward.graph.protos import holds_map
from onward.losses.combined import build_with_parts
from onward.losses.loss import Loss
from onward.optimizers.groups import Assignment, resolve
from onward.optimizers.optimizer import Optimizer
from onward.passes.drop_unused import drop_unused
from onward.passes.exporters.exporter_warnings import warn_of_exporter
from onward.passes.exporters.restore_parameters import Guesses
from onward.passes.fuse import activation, norm
from onward.passes.linear_models import write_linear_models
from onward.passes.pipelines import PREPARE
from onward.passes.random_draws import Draws, draw_uniforms, left_random
from onward.passes.recognize_composites import recognise_composites
from onward.passes.rewrite import rewrite
from onward.passes.shared_batch_norms import share_batch_norms
from onward.passes.training_mode import eval_mode, separate_statistics, train_mode
from onward.passes.zip_maps import unzipped
from onward.programs.batch_weights import batch_weight
from onward.programs.custom_state import check_state, return_state
from onward.programs.input_tensors import InputTensors
from onward.programs.label_ranges import LabelRange
from onward.programs.labels import find_labels, labels_of_loss
from onward.programs.memory.engine_memory import EVERY_VALUE, FindEngineMemory
from onward.programs.memory.optimize_memory import optimize_memory
from onward.programs.precision.float8_products import NEW_HISTORY, Float8Products, use_float8
from onward.programs.precision.gradient_sums import widen_sums
from onward.programs.precision.lower_precision import lower_evaluation, lower_training
from onward.programs.program import (
    DRAW,
    FLOAT8_HISTORY,
    LOSS,
    SCALE,
    Layout,
    Program,
    Settings,
    TrainableParameter,
)
from onward.programs.row_gradients import separate_tables
from onward.programs.select import (
    batch_norms,
    initializers,
    nothing_to_train,
    restore_parameters,
    select,
    weights,
)
from onward.programs.shared_sums import cut_at_sums
from onward.programs.sparsity.leave_out_rows import leave_out_rows
from onward.programs.sparsity.sparsity_options import Sparsity
from onward.programs.training_options import TrainingOptions
from onward.programs.update_graphs import build_updates, is_scaled

log = logging.getLogger("onward")


def build_program(
    model: Source,
    loss: Loss | None,
    optimizer: Optimizer | None,
    options: TrainingOptions | Mapping[str, Any] | None = None,
    *,
    shares_batch_norms: bool = False,  # over processes
    engine: FindEngineMemory | None = None,
) -> Program:
    """Compile a model, a loss and an optimizer to the graphs that a training session runs.

    `engine` finds what the engine keeps of the train graph, for the plan of a Memory option.
    """
    settings = TrainingOptions.of(options)
    if loss is None or optimizer is None:
        load(model, any_domain=True)  # a path where nothing is has an error of its own
        missing = "loss" if loss is None else "optimizer"
        raise OptionError(
            f"a training session needs a model, a loss and an optimizer; it has no {missing}\n"
            "for example: TrainingSession(model, losses.CrossEntropy(), optimizers.AdamW())"
        )
    base = _Base.of(load(model, any_domain=True), loss, settings)
    check_state(base.model, settings.state)
    assignments = _assigned(base, optimizer, settings)
    names = [name for each in assignments for name in each.names]
    separate_statistics(base.model)
    train = restore_operators(base.model.clone())  # else passes would drop marked identities
    frozen = batch_norms(train, settings.frozen_batch_norms)
    unbiased = settings.unbiased_variance
    state = train_mode(train, frozen, unbiased=unbiased and not shares_batch_norms)
    if shares_batch_norms:
        share_batch_norms(train, unbiased=unbiased)
    state |= return_state(train, settings.state)
    evaluated, predicted = eval_mode(base.model.clone()), eval_mode(_inference_model(base))
    left_out = leave_out_rows(train, Sparsity.of(settings.sparsity), [*names, *state])
    draws = prepare_training_graph(train, [*names, *state])
    fed = InputTensors.of(base.model, names, list(state))
    fed.make_inputs(train)
    lower_training(train, settings.precision_settings, fed.initial)
    float8 = _use_float8(train, names, settings, fed)
    gradients = _differentiate(train, names, settings, float8)
    sums = cut_at_sums(train) if shares_batch_norms else ()
    if len(gradients) < len(names):
        fed = fed.only(list(gradients), base.model, train)
    if float8 is not None:
        fed.initial[FLOAT8_HISTORY] = float8.initial
        state[FLOAT8_HISTORY] = NEW_HISTORY
    kept_memory = EVERY_VALUE if engine is None else engine(train)
    if settings.memory is not None:
        if sums:
            raise OptionError(
                "memory: activations are not recomputed across shared batch norms\n"
                "leave out memory, or let each process normalise its own batch"
            )
        kept_outputs = [LOSS, *base.outputs, *state.values()]
        optimize_memory(train, kept_outputs, gradients.values(), settings.memory, kept_memory)
    warn_of_exporter(base.model, gradients, base.guesses)
    _warn_of_unrepeatable_nodes(train)
    for graph in (evaluated, predicted):
        fed.make_inputs(graph)
    lower_evaluation(evaluated, settings.precision_settings, fed.initial)
    _omit_inputs(drop_unused(predicted), [*base.inputs])
    kept = [_kept(each, gradients) for each in assignments]
    tables: Collection[str] = ()
    if settings.average is None:  # averages of all rows change with every step
        outputs = {str(value.name): value for value in train.graph.outputs}
        rows = {name: outputs[gradients[name]] for name in fed.trained}
        kept, tables = separate_tables(kept, rows, {n: s for n, (_, s) in fed.trained.items()})
    updates, update_layouts = build_updates(kept, fed.trained, settings, tables)
    layout = Layout(
        parameters=tuple(
            TrainableParameter(name=name, shape=tuple(shape), gradient=gradients[name])
            for name, (_, shape) in fed.trained.items()
        ),
        updates=update_layouts,
        state=state,
        frozen=tuple(fed.frozen),
        inputs=tuple(base.inputs),
        targets=tuple(base.targets),
        outputs=tuple(base.outputs),
        model_outputs=tuple(base.own_outputs),
        labels=base.labels,
        settings=_settings(base, settings, optimizer),
        initial=fed.initial,
        weight=batch_weight(loss, base.labels, base.model.graph),
        sums=sums,
        derived=left_out.rows,
        notes=left_out.notes,
        model=base.restored,
    )
    return Program(
        layout=layout,
        train=train,
        evaluate=evaluated,
        predict=predicted,
        updates=updates,
        draws=draws,
        memory=kept_memory,
    )


def prepare_training_graph(train: ir.Model, kept: Collection[str]) -> Draws | None:
    """Prepare a model in training mode for differentiation, in place; return its random draws.

    Random nodes become formulas; activations, norms and attention that are written out become one
    node each, whose gradient engines may have as one kernel. `kept` are the initializers that
    training changes.
    """
    draws = draw_uniforms(train, DRAW)
    recognise_composites(train, kept)  # folds constants, which the rules read
    rewrite(train, activation.rule | norm.rule)
    return draws


def scalar_loss(op: GraphOps, loss: ir.Value) -> ir.Value:
    """A loss as a scalar: the sum if it has several elements."""
    if loss.shape is None or any(size != 1 for size in loss.shape):
        total: ir.Value = op.ReduceSum(loss, keepdims=0)
        return total
    return op.Reshape(loss, np.zeros(0, np.int64)) if len(loss.shape) else loss


def _assigned(base: _Base, optimizer: Optimizer, settings: TrainingOptions) -> list[Assignment]:
    """The parameters with their optimizers."""
    chosen = select(base.model, base.weights, base.loss, settings.trainable, settings.frozen)
    shapes = _shapes(base.model, chosen)
    found = [each for each in resolve(optimizer, settings.groups, shapes) if each.optimizer]
    if not found:
        raise OptionError("there is nothing to train: every parameter is in a frozen group")
    return found


def _kept(assignment: Assignment, names: Collection[str]) -> Assignment:
    return assignment._replace(names=[name for name in assignment.names if name in names])


def _inference_model(base: _Base) -> ir.Model:
    """The model without the loss, with its own outputs."""
    model = base.model.clone()
    model.graph.outputs[:] = [_find(model, name) for name in base.own_outputs]
    return model


def _shapes(model: ir.Model, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    lift_weights(model, names)
    values = [model.graph.initializers[name] for name in names]
    return {_name(v): tuple(v.const_value.shape.numpy()) for v in values if v.const_value}


@dataclass
class _Base:
    """The prepared model with its loss, and the names of its inputs and outputs."""

    model: ir.Model
    loss: ir.Value
    inputs: list[str]
    targets: list[str]
    own_outputs: list[str]
    outputs: list[str]
    labels: tuple[LabelRange, ...]
    weights: list[str]  # that may be trained
    restored: ir.Model  # the given model, its parameters as before the export
    guesses: Guesses

    @classmethod
    def of(cls, source: ir.Model, loss: Loss, settings: TrainingOptions) -> _Base:
        _check_inputs(source)
        model = source.clone()
        separate = settings.trainable or ()
        guesses = restore_parameters(model, _named(settings), separate, settings.tied)
        restored = model.clone()
        model = write_linear_models(model)
        carried = set(initializers(model))  # without values of Constant nodes
        model = separate_statistics(PREPARE(model))
        known = [name for name in weights(model, carried) if name not in settings.state]
        graph = model.graph
        inputs = [_name(value) for value in graph.inputs]
        own = list(dict.fromkeys(map(unzipped, graph.outputs)))
        op = extend(model)
        values = {_name(value): value for value in (*own, *_values(model))}
        made, parts = build_with_parts(loss, op, values)
        made = scalar_loss(op, made)
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
        found = (*labels_of_loss(loss, values), *find_labels(model))
        labels = tuple({each.name: each for each in found}.values())
        return cls(model, made, inputs, targets, owns, asked, labels, known, restored, guesses)


def _named(settings: TrainingOptions) -> set[str]:
    """All names in the user's options: Constants with these names are weights."""
    tied = [name for group in settings.tied or () for name in group]
    return {*(settings.trainable or ()), *settings.frozen, *settings.state, *tied}


def _check_inputs(model: ir.Model) -> None:
    """Refuse inputs that are not tensors."""
    for value in model.graph.inputs:
        if holds_map(value.type):
            raise UnsupportedModel(
                f"input {value.name!r} is a map: a training step takes tensors\n"
                "run the nodes that read the map (DictVectorizer, CastMap) beforehand, and train "
                "the rest of the model"
            )


def _named_loss(made: ir.Value, values: Mapping[str, ir.Value]) -> ir.Value:
    if LOSS in values:
        raise OptionError(
            f"the model has a value {LOSS!r} that is not the loss of this session\n"
            "rename it, or train on it: losses.Output('loss')"
        )
    made.name = LOSS
    return made


def _warn_of_unrepeatable_nodes(train: ir.Model) -> None:
    for name in left_random(train):
        log.warning(
            "%s is random inside a branch or a loop: a resumed run will not repeat it", name
        )


def _settings(base: _Base, settings: TrainingOptions, optimizer: Optimizer) -> Settings:
    return Settings(
        accumulate=settings.accumulate,
        clip_norm=settings.clip_norm,
        skip_nonfinite=settings.skip_nonfinite,
        seed=settings.seed,
        scaled=is_scaled(settings),
        loss_scale=settings.loss_scale,
        schedule=settings.schedule,
        learning_rate=optimizer.lr,
        loss_dtype=base.loss.dtype.numpy().name if base.loss.dtype else "float32",
        averaged=settings.average is not None,
        precision=None if (low := settings.precision_settings) is None else low.kind,
        products=None if low is None else low.products,
        emulated=low is not None and low.emulated,
    )


def _use_float8(
    train: ir.Model, names: Sequence[str], settings: TrainingOptions, fed: InputTensors
) -> Float8Products | None:
    """Compute products in 8 bits, if the settings say so."""
    low = settings.precision_settings
    if low is None or low.products is None:
        return None
    return use_float8(train, fed.initial, names)


def _differentiate(
    model: ir.Model,
    names: Sequence[str],
    settings: TrainingOptions,
    float8: Float8Products | None = None,
) -> dict[str, str]:
    """Add the gradients of the loss; parameter -> gradient.

    A weight that no gradient reaches (numbers that are compared, scales of Resize) is not trained,
    unless the user named it.
    """
    cotangent = None if settings.loss_scale is None else SCALE
    rules = GRADIENTS if settings.rules is None else settings.rules
    by_default = settings.trainable is None
    forward = {*model.graph}
    wrt = [*names, *(float8.probes if float8 is not None else ())]
    gradients = differentiate(
        model, {LOSS: cotangent}, wrt, rules, omit_zeros=by_default, composites=True
    )
    if float8 is not None:
        probes = {name: gradients.pop(name) for name in float8.probes if name in gradients}
        float8.finish(model, probes)
    if settings.precision is not None:
        widen_sums(model, forward)
    if not gradients:
        raise nothing_to_train(names)
    return gradients


def _omit_inputs(model: ir.Model, kept: Sequence[str]) -> None:
    """Remove unused graph inputs, except those in `kept`."""
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
