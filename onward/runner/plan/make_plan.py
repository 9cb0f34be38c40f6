"""make_plan: what a run does, worked out from the config, the model and the data.

Every guess has a file of its own; this one calls them in order and collects their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from onward.errors import DataError
from onward.graph.files import Source, load
from onward.graph.graph_ops import taken_names
from onward.passes.training_mode import free_name
from onward.runner.config import TrainConfig
from onward.runner.data.batches import Batches, Feeds
from onward.runner.data.dataset import Column
from onward.runner.finetune.adapt import adapt_model
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.feed_transform import FeedTransform
from onward.runner.plan.guess_loss import ChosenLoss, choose_loss
from onward.runner.plan.input_columns import match_inputs
from onward.runner.plan.input_sources import make_sources
from onward.runner.plan.learning import (
    check_resolved,
    count_steps,
    explain_precision,
    make_optimizer,
    make_options,
)
from onward.runner.plan.model_shapes import (
    ModelPorts,
    TensorPort,
    choose_loss_output,
    choose_output,
    read_ports,
    text_length,
)
from onward.runner.plan.plan_batches import first_feeds, make_batches
from onward.runner.plan.plan_metrics import choose_metrics, choose_monitor, choose_scores
from onward.runner.plan.preprocessing import Preprocessing, read_preprocessing
from onward.runner.plan.row_split import RowSplit, split_rows
from onward.runner.plan.target_column import (
    find_target,
    is_reconstruction,
    leftover_target,
    used_columns,
)
from onward.runner.plan.target_facts import TargetFacts, read_target
from onward.runner.plan.target_source import check_labels, make_target
from onward.runner.plan.training_data import TrainingData, open_training_data
from onward.runner.plan.training_plan import Choice, TrainingPlan


def make_plan(
    config: TrainConfig, model: Source, data: Any = None, validation: Any = None
) -> TrainingPlan:
    """Work out a run: columns, encoders, loss, optimizer, metrics, batches.

    `data` and `validation` replace those of the config, and may be anything that `open_data`
    takes. Every guess is in the plan's `choices`, and can be said in the config instead.
    """
    size = check_resolved(config)
    loaded = load(model, any_domain=True)
    ports, stored = read_ports(loaded), read_preprocessing(loaded)
    opened = open_training_data(
        config,
        ports,
        data,
        validation,
        text_length(loaded),
        None if stored is None else stored.vocabulary,
    )
    choices = list(opened.choices)

    # -- columns, rows, feeds of the inputs
    target, sources, made, rows, facts = _read_columns(config, ports, opened, stored)
    choices += made
    batch, fixed = _batch_size(size, ports)
    choices += fixed
    calibration_feeds = FeedTransform(Preprocessing(sources), target=False)

    def calibration() -> Iterable[Feeds]:
        columns = calibration_feeds.preprocessing.needed_columns()
        some = Batches(
            opened.training, batch, seed=config.seed, positions=rows.training, columns=columns,
            transform=calibration_feeds, threads=0, drop_last=bool(fixed),
        )  # fmt: skip
        return first_feeds(some)

    # -- the model, its loss, its target
    if config.loss == "output" and config.output is None:
        ports = choose_loss_output(ports)
    else:
        ports = choose_output(ports, config.output, target)
    output = ports.scores.output.name
    is_own = any(value.name == output for value in loaded.graph.outputs)  # not behind a ZipMap
    adapted = adapt_model(config, loaded, calibration, [output] if is_own else None)
    choices += [Choice("model", note, "as given") for note in adapted.notes]
    trained = choose_output(read_ports(adapted.model), adapted.output or output, None)
    feed = _target_feed(adapted.model)
    if facts is None and config.loss != "output":
        feed = sources[0].feed  # an autoencoder: the target is the input itself
    chosen = choose_loss(config, trained.scores, facts, feed)
    reads = _port_of(trained, chosen)
    choices.append(chosen.choice)
    source, classes = None, ()
    if facts is not None and target is not None:
        known = stored.classes if stored is not None and config.new_head is None else ()
        source, classes, made = make_target(chosen, reads, facts, feed, known)
        choices += made
        _check_vocabulary(opened, loaded, reads, chosen)
        check_labels(config, chosen, reads, source, opened.training, None)
        if rows.held_out is not None and rows.held_out is not opened.training:
            check_labels(config, chosen, reads, source, rows.held_out, None)
    preprocessing = Preprocessing(
        sources,
        source,
        trained.scores.output.name,
        classes,
        opened.vocabulary,
        bool(trained.scores.ending),
    )

    # -- batches, learning, measuring
    training, evaluated = make_batches(config, opened, rows, facts, preprocessing, reads, batch)
    steps = count_steps(config, len(training))
    optimizer, made = make_optimizer(config)
    choices += made
    make_metrics, made = choose_metrics(config, chosen, reads)
    choices += made
    choices += explain_precision(config)
    monitor, higher, choice = choose_monitor(config, make_metrics(), evaluated is not None)
    sizes = {"training rows": len(rows.training)}
    if rows.validation is not None:
        sizes["validation rows"] = len(rows.validation)
    return TrainingPlan(
        adapted=adapted,
        loss=chosen.loss,
        optimizer=optimizer,
        options=make_options(config, adapted, steps, chosen.output),
        preprocessing=preprocessing,
        training=training,
        validation=evaluated,
        make_metrics=make_metrics,
        output=chosen.output,
        target=feed,
        scores=choose_scores(config, chosen, reads),
        classes=classes,
        epochs=config.epochs,
        steps=steps,
        monitor=monitor,
        higher_is_better=higher,
        choices=[*choices, choice],
        sizes=sizes,
    )


def _read_columns(
    config: TrainConfig, ports: ModelPorts, opened: TrainingData, stored: Preprocessing | None
) -> tuple[str | None, tuple[FeedSource, ...], list[Choice], RowSplit, TargetFacts | None]:
    """The target column, the sources of the inputs, the rows of both parts, and the reasons."""
    columns = used_columns(config, opened.training.columns)
    reused = _stored_sources(config, ports, columns, stored)
    target, choice = find_target(config, columns, ports)
    if target is None and stored is not None and stored.target is not None:
        target = next((name for name in stored.target.columns if name in columns), None)
        choice = Choice("target", str(target), "as in the model's stored preprocessing")
    choices = list[Choice]()
    matched: dict[str, tuple[str, ...]] = {}
    if reused is None:
        keep_one = target is None and config.loss != "output" and not is_reconstruction(ports)
        matched, choices = match_inputs(config, columns, ports, target, keep_one)
    if target is None and config.loss != "output":
        taken = {name for names in matched.values() for name in names}
        taken |= {name for source in reused or () for name in source.columns}
        left = [name for name in columns if name not in taken]
        target, choice = leftover_target([] if is_reconstruction(ports) else left, ports)
    choices += [] if choice is None else [choice]
    facts = None
    if target is not None:
        facts = read_target(opened.training, target, None, opened.class_names)
    rows = split_rows(config, opened, facts)
    choices.append(rows.choice)
    if reused is not None:
        choices.append(Choice("preprocessing", "of the model", "it was stored with it"))
        return target, reused, choices, rows, facts
    if is_reconstruction(ports) and ports.scores.ending == "Sigmoid":
        config = config.model_copy(update={"standardize": False})  # outputs are between 0 and 1
    sources, made = make_sources(config, ports, matched, opened.training, rows.training)
    return target, sources, [*choices, *made], rows, facts


def _stored_sources(
    config: TrainConfig,
    ports: ModelPorts,
    columns: dict[str, Column],
    stored: Preprocessing | None,
) -> tuple[FeedSource, ...] | None:
    """The inputs of an earlier training of this model, if the data has their columns."""
    if stored is None or config.inputs is not None or config.standardize is not None:
        return None
    feeds = {source.feed for source in stored.inputs}
    known = all(name in columns for name in stored.needed_columns(target=False))
    return stored.inputs if known and feeds == {each.name for each in ports.inputs} else None


def _batch_size(size: int, ports: ModelPorts) -> tuple[int, list[Choice]]:
    """The batch size, or the one that the model's inputs fix."""
    fixed = {each.shape[0] for each in ports.inputs if each.shape and each.shape[0] is not None}
    if not fixed:
        return size, []
    [own] = list(fixed)[:1]
    assert own is not None
    why = "the model was exported with this batch size; rows that do not fill one are left out"
    return own, [Choice("batch size", str(own), why)]


def _target_feed(model: ir.Model) -> str:
    """A name for the target's feed that no value of the model has."""
    return str(free_name("target", taken_names(model)))


def _port_of(ports: ModelPorts, chosen: ChosenLoss) -> TensorPort:
    scores = ports.scores
    return scores.scores if scores.scores.name == chosen.output else scores.output


def _check_vocabulary(
    opened: TrainingData, model: ir.Model, port: TensorPort, chosen: ChosenLoss
) -> None:
    """Every character needs an output, and a row of the embedding."""
    if opened.vocabulary is None or chosen.axis is None:
        return
    count, outputs = len(opened.vocabulary.characters), port.shape[chosen.axis]
    tables = [
        int(node.inputs[0].shape.numpy()[0])
        for node in model.graph
        if node.op_type == "Gather" and node.inputs[1] in model.graph.inputs
        if node.inputs[0] is not None and node.inputs[0].shape is not None
        if node.inputs[0].is_initializer()
    ]
    least = min([size for size in (outputs, *tables) if size is not None], default=count)
    if count > least:
        raise DataError(
            f"the text has {count} different characters, the model has {least} tokens\n"
            f"use a model of a larger vocabulary: onward new gpt2 --vocabulary {count}"
        )
