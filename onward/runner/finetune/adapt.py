"""adapt_model: the settings of fine-tuning, applied to a model.

adapted = adapt_model(make_config(new_head=3, freeze=["encoder.*"]), model)
options = TrainingOptions(trainable=adapted.trainable, frozen=adapted.frozen)
session = TrainingSession(adapted.model, loss, optimizer, options)
trained = adapted.export({**session.parameters, **session.statistics})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import ancestors
from onward.message_text import suggest_names
from onward.optimizers.catalogue import OPTIMIZERS
from onward.programs.export import export_model
from onward.programs.select import restore_parameters
from onward.runner.config import TrainConfig
from onward.runner.finetune.adapted_model import (
    AdaptedModel,
    Array,
    LayerRate,
    Tensors,
    rate_groups,
)
from onward.runner.finetune.adapter_files import save_adapter
from onward.runner.finetune.batch_norms import batch_norm_names
from onward.runner.finetune.head import add_head, new_head
from onward.runner.finetune.layer_depths import layers_by_depth, unfreeze_schedule
from onward.runner.finetune.linear_layers import find_layers, prepare_layers
from onward.runner.finetune.lora import add_lora, merge_lora
from onward.runner.finetune.quantization_aware import export_quantized, make_quantization_aware
from onward.runner.finetune.setting_conflicts import check_settings
from onward.runner.finetune.weight_selection import select_weights

Feeds = Mapping[str, Array]


def adapt_model(
    config: TrainConfig,
    model: ir.Model,
    calibration: Callable[[], Iterable[Feeds]] = tuple,
    outputs: Sequence[str] | None = None,
) -> AdaptedModel:
    """Apply new_head, freeze, train_only, lora, layer_decay, quantization_aware, ... to a model.

    Args:
        config: the settings of the run
        model: the model, which does not change
        calibration: gives some batches of the model's inputs, for quantization_aware
        outputs: the outputs that the loss reads; None: all. What only others depend on cannot be
            trained

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> from onward.runner.config import make_config
    >>> op = OpBuilder()
    >>> w = op.initializer("fc.weight", np.ones((4, 10), np.float32))
    >>> model = op.model(y=op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    >>> adapted = adapt_model(make_config(new_head=3), model)
    >>> adapted.notes
    ('new head: 3 outputs (head.weight)',)
    """
    check_settings(config)
    subject = _StartingModel(model, _checked_outputs(model, outputs))
    if config.new_head is not None:
        subject = _with_new_head(config, subject)
    if config.lora is not None:
        adapted = _with_lora(config, subject)
    elif config.quantization_aware:
        adapted = _with_quantization(config, subject, calibration)
    else:
        adapted = _with_own_weights(config, subject)
    adapted = _with_layer_rates(config, adapted, subject.outputs)
    adapted = _with_stages(config, adapted, subject.outputs)
    trained = None if outputs is None else subject.outputs[0]
    return replace(_with_batch_norms(config, adapted), output=trained)


def default_learning_rate(config: TrainConfig) -> float:
    """The learning rate of a config: its number, or else the optimizer's usual one."""
    if isinstance(config.learning_rate, float):
        return config.learning_rate
    [kind] = [each for name, each in OPTIMIZERS.items() if name.lower() == config.optimizer]
    return kind().lr


@dataclass(frozen=True)
class _StartingModel:
    """The model so far, the outputs that count, and the parameters of its new head."""

    model: ir.Model
    outputs: tuple[str, ...]
    head: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _checked_outputs(model: ir.Model, outputs: Sequence[str] | None) -> tuple[str, ...]:
    known = [str(value.name) for value in model.graph.outputs]
    for name in outputs or ():
        if name not in known:
            raise OptionError(f"the model has no output {name!r}\n{suggest_names(name, known)}")
    return tuple(known if outputs is None else outputs)


def _with_new_head(config: TrainConfig, subject: _StartingModel) -> _StartingModel:
    """A new last layer; behind the output where no linear layer makes it, as with features."""
    assert config.new_head is not None
    [output, *_] = subject.outputs
    [value] = [each for each in subject.model.graph.outputs if each.name == output]
    note = f"new head: {config.new_head} outputs"
    try:
        head = new_head(subject.model, config.new_head, output, config.seed)
    except OptionError:
        if value.shape is None or len(value.shape) != 2:
            raise
        head = add_head(subject.model, config.new_head, output, config.seed)
        note = f"{note} behind {output!r}"
    place = list(subject.model.graph.outputs).index(value)
    return _StartingModel(
        head.model,
        (str(head.model.graph.outputs[place].name),),
        head=head.names,
        notes=(f"{note} ({', '.join(head.names)})",),
    )


# -- what is trained -----------------------------------------------------------------------------


def _with_own_weights(config: TrainConfig, subject: _StartingModel) -> AdaptedModel:
    model = subject.model
    chosen = select_weights(
        _only_outputs(model, subject.outputs), config.train_only, config.freeze, subject.head
    )

    def export(tensors: Tensors) -> ir.Model:
        restored = model.clone()
        trainable = chosen.trainable or ()
        restore_parameters(restored, {*trainable, *chosen.frozen}, trainable)
        return export_model(restored, tensors)

    return AdaptedModel(
        model,
        export,
        trainable=chosen.trainable,
        frozen=chosen.frozen,
        notes=(*subject.notes, *_selection_notes(config, chosen.trainable, chosen.frozen)),
    )


def _with_lora(config: TrainConfig, subject: _StartingModel) -> AdaptedModel:
    """Adapters in all layers that are chosen, except the new head, which is trained itself."""
    assert config.lora is not None
    layers = find_layers(prepare_layers(subject.model), config.lora_targets)
    targets = [str(each[0].weight.name) for each in layers]
    targets = [name for name in targets if name not in subject.head]
    if not targets:
        raise OptionError(
            "lora_targets: only the new head matches, which is trained without adapters\n"
            "choose other layers, or train only the head: freeze '*'"
        )
    low_rank = add_lora(
        subject.model,
        config.lora,
        targets,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        seed=config.seed,
        dora=config.dora,
    )
    needed = _needed(low_rank.model, subject.outputs)
    trained = [name for name in (*low_rank.names, *subject.head) if name in needed]
    kind = "DoRA" if config.dora else "LoRA"
    note = f"{kind}: rank {config.lora} in {len(low_rank.pairs)} layers"

    def completed(tensors: Tensors) -> dict[str, Array]:
        """Trained tensors, and the first values of adapters that the loss does not depend on."""
        return {**low_rank.tensors(), **tensors}

    def save(path: Path, tensors: Tensors) -> None:
        save_adapter(path, low_rank, completed(tensors), head_outputs=config.new_head)

    return AdaptedModel(
        low_rank.model,
        lambda tensors: merge_lora(low_rank, completed(tensors)),
        trainable=tuple(trained),
        save_adapter=save,
        notes=(*subject.notes, note),
    )


def _with_quantization(
    config: TrainConfig, subject: _StartingModel, calibration: Callable[[], Iterable[Feeds]]
) -> AdaptedModel:
    aware = make_quantization_aware(subject.model, calibration())
    viewed = _only_outputs(aware.model, subject.outputs)
    chosen = select_weights(
        viewed, config.train_only, [*config.freeze, *aware.scales], subject.head
    )
    names = [name for name in chosen.frozen if name not in aware.scales]
    return AdaptedModel(
        aware.model,
        lambda tensors: export_quantized(aware, tensors),
        trainable=chosen.trainable,
        frozen=chosen.frozen,
        notes=(
            *subject.notes,
            *_selection_notes(config, chosen.trainable, names),
            f"quantization-aware: {len(aware.weights)} weights in int8",
        ),
    )


def _selection_notes(
    config: TrainConfig, trainable: Sequence[str] | None, frozen: Sequence[str]
) -> list[str]:
    notes = []
    if trainable is not None:
        notes.append(f"trained: {len(trainable)} weights ({', '.join(config.train_only or ())})")
    if config.freeze:
        notes.append(f"frozen: {len(frozen)} weights ({', '.join(config.freeze)})")
    return notes


# -- how it is trained ---------------------------------------------------------------------------


def _with_layer_rates(
    config: TrainConfig, adapted: AdaptedModel, outputs: Sequence[str]
) -> AdaptedModel:
    if config.layer_decay is None:
        return adapted
    viewed = _only_outputs(adapted.model, outputs)
    layers = layers_by_depth(viewed, adapted.trainable, adapted.frozen)
    rates = [
        LayerRate(frozenset(names), config.layer_decay**after)
        for after, names in enumerate(reversed(layers))
    ]
    return replace(
        adapted,
        layer_rates=rates,
        groups=rate_groups(rates, default_learning_rate(config)),
        notes=(*adapted.notes, f"layer rates: {len(rates)} layers, {rates[-1].share:.3g} to 1"),
    )


def _with_stages(
    config: TrainConfig, adapted: AdaptedModel, outputs: Sequence[str]
) -> AdaptedModel:
    if config.unfreeze_every is None:
        return adapted
    stages = unfreeze_schedule(
        _only_outputs(adapted.model, outputs),
        every=config.unfreeze_every,
        trainable=adapted.trainable,
        frozen=adapted.frozen,
    )
    note = f"unfreezing: {len(stages)} layers, one more every {config.unfreeze_every} steps"
    return replace(adapted, stages=stages, notes=(*adapted.notes, note))


def _with_batch_norms(config: TrainConfig, adapted: AdaptedModel) -> AdaptedModel:
    if not config.freeze_batch_norm:
        return adapted
    names = batch_norm_names(adapted.model)
    note = f"BatchNormalization: {len(names)} layers keep their statistics"
    return replace(adapted, frozen_batch_norms=names, notes=(*adapted.notes, note))


# -- the part of the model that the loss depends on ----------------------------------------------


def _needed(model: ir.Model, outputs: Sequence[str]) -> set[str]:
    """The names of all values that some outputs depend on."""
    values = [value for value in model.graph.outputs if value.name in outputs]
    return {str(value.name) for value in ancestors(model.graph, values)}


def _only_outputs(model: ir.Model, outputs: Sequence[str]) -> ir.Model:
    """A copy with only these outputs."""
    copy = model.clone()
    copy.graph.outputs[:] = [value for value in copy.graph.outputs if value.name in outputs]
    return copy
