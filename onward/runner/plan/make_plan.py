"""make_plan: what a run does, worked out from the config, the model and the data.

Every guess has a file of its own; this one calls them in order and collects their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.files import Source, load
from onward.graph.graph_ops import taken_names
from onward.passes.training_mode import free_name
from onward.runner.config import CHARACTERS, TrainConfig
from onward.runner.data.batches import Batches, Feeds
from onward.runner.data.dataset import UNREADABLE, Column, choose_columns
from onward.runner.data.in_memory import paired_target
from onward.runner.data.text_files import NEXT_TOKENS, Vocabulary
from onward.runner.finetune.adapt import adapt_model
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.feed_transform import FeedTransform
from onward.runner.plan.guess_loss import ChosenLoss, choose_loss
from onward.runner.plan.input_columns import match_inputs
from onward.runner.plan.input_sources import make_sources
from onward.runner.plan.joined_scores import join_scores
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
from onward.runner.plan.own_classes import own_classes
from onward.runner.plan.own_scaling import explain_own_scaling
from onward.runner.plan.plan_batches import first_feeds, make_batches
from onward.runner.plan.plan_metrics import (
    check_metrics,
    choose_metrics,
    choose_monitor,
    choose_scores,
)
from onward.runner.plan.preprocessing import Preprocessing, read_preprocessing
from onward.runner.plan.row_norms import keep_row_norms, leaves_one_row
from onward.runner.plan.row_split import RowSplit, split_rows
from onward.runner.plan.row_weights import check_row_weights, read_row_weights, weighted
from onward.runner.plan.score_ending import TWO_SCORES
from onward.runner.plan.target_column import (
    find_target,
    is_reconstruction,
    leftover_target,
    other_targets,
    used_columns,
)
from onward.runner.plan.target_facts import TargetFacts, read_target, with_held_out
from onward.runner.plan.target_source import check_labels, explain_scale, make_target
from onward.runner.plan.text_column import open_text_column
from onward.runner.plan.token_inputs import (
    FoundTokenizer,
    find_tokenizer,
    tokenize_columns,
    with_token_inputs,
    without_inputs,
)
from onward.runner.plan.training_data import TrainingData, open_training_data
from onward.runner.plan.training_plan import ChosenSetting, TrainingPlan
from onward.runner.plan.vocabulary_size import check_vocabulary


def make_plan(
    config: TrainConfig, model: Source, data: Any = None, validation: Any = None
) -> TrainingPlan:
    """Work out a run: columns, encoders, loss, optimizer, metrics, batches.

    `data` and `validation` replace those of the config, and may be anything that `open_data`
    takes. Every guess is in the plan's `choices`, and can be set in the config instead.
    """
    size = check_resolved(config)
    loaded = join_scores(load(model, any_domain=True))
    ports, stored = read_ports(loaded), read_preprocessing(loaded)
    tokenizer, length = find_tokenizer(config, model, stored), text_length(loaded)
    known = None if stored is None or config.tokenizer is not None else stored.vocabulary
    opened = open_training_data(config, ports, data, validation, length, known, tokenizer)
    config, opened = open_text_column(config, ports, opened, length, known, tokenizer)
    choices = list(opened.choices)

    # -- columns, rows, feeds of the inputs
    own_scaling = explain_own_scaling(loaded)
    columns = _read_columns(config, ports, opened, stored, tokenizer, length, own_scaling)
    target, sources, rows, facts = columns.target, columns.sources, columns.rows, columns.facts
    choices += columns.choices
    batch, fixed = _batch_size(size, ports)
    choices += fixed
    inputs_alone = Preprocessing(sources, vocabulary=columns.vocabulary)
    calibration_feeds = FeedTransform(inputs_alone, target=False)

    def calibration() -> Iterable[Feeds]:
        needed = inputs_alone.needed_columns()
        some = Batches(
            opened.training, batch, seed=config.seed, positions=rows.training, columns=needed,
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
    choices += [ChosenSetting("model", note, "as given") for note in adapted.notes]
    adapted, made = keep_row_norms(adapted, batch)
    choices += made
    trained = choose_output(read_ports(adapted.model), adapted.output or output, None)
    feed = _new_feed(adapted.model, "target")
    if facts is None and config.loss != "output":
        feed = sources[0].feed  # an autoencoder: the target is the input itself
    chosen = choose_loss(config, trained.scores, facts, feed)
    reads = _port_of(trained, chosen)
    choices.append(chosen.choice)
    check_vocabulary(columns.vocabulary, loaded, ports, reads, chosen.axis)
    source, classes = None, ()
    if facts is not None and target is not None:
        classes = stored.classes if stored is not None and config.new_head is None else ()
        own = own_classes(adapted.model) if config.new_head is None else ()
        source, classes, made = make_target(chosen, reads, facts, feed, classes, own)
        choices += [*made, *explain_scale(chosen, facts, opened.training, rows.training)]
        check_labels(config, chosen, reads, source, opened.training, None)
        if rows.held_out is not None and rows.held_out is not opened.training:
            choose_columns(rows.held_out.columns, source.columns, "the validation data")
            check_labels(config, chosen, reads, source, rows.held_out, None)
    preprocessing = Preprocessing(
        sources,
        source,
        None if trained.scores.ending == TWO_SCORES else trained.scores.output.name,
        classes,
        columns.vocabulary,
        bool(trained.scores.ending),
    )

    # -- batches, learning, measuring
    weights = read_row_weights(
        config, opened.training, rows.training, _new_feed(adapted.model, "weights", feed)
    )
    if weights is not None:
        why = f"mean {weights.mean:.4g}; rows that are held out count alike"
        choices.append(ChosenSetting("row weights", weights.column, why))
    drops_last, made = leaves_one_row(adapted, len(rows.training), batch)
    choices += made
    training, evaluated = make_batches(
        config, opened, rows, facts, preprocessing, reads, batch, weights, drops_last
    )
    steps = count_steps(config, len(training))
    optimizer, made = make_optimizer(config)
    choices += made
    make_metrics, made = choose_metrics(config, chosen, reads)
    choices += made
    if evaluated is not None:
        check_metrics(config, chosen, evaluated, feed)
    choices += explain_precision(config)
    monitor, higher, choice = choose_monitor(config, make_metrics(), evaluated is not None)
    sizes = {"training rows": len(rows.training)}
    if rows.validation is not None:
        sizes["validation rows"] = len(rows.validation)
    return TrainingPlan(
        adapted=adapted,
        loss=weighted(chosen.loss, weights),
        optimizer=optimizer,
        options=make_options(config, adapted, optimizer, steps, chosen.output),
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
        weights=None if weights is None else weights.feed,
    )


@dataclass(frozen=True)
class PlannedColumns:
    """The target column, the sources of the inputs, the rows of both parts, and the reasons."""

    target: str | None
    sources: tuple[FeedSource, ...]
    choices: list[ChosenSetting]
    rows: RowSplit
    facts: TargetFacts | None
    vocabulary: Vocabulary | None


def _read_columns(
    config: TrainConfig,
    ports: ModelPorts,
    opened: TrainingData,
    stored: Preprocessing | None,
    tokenizer: FoundTokenizer | None,
    length: int | None,
    own_scaling: str | None,
) -> PlannedColumns:
    check_row_weights(config, opened.training.columns)
    columns = used_columns(config, opened.training.columns)
    reused = _stored_sources(config, ports, columns, stored)
    target, choice = find_target(config, columns, ports, paired_target(opened.training))
    if target is None and stored is not None and stored.target is not None:
        target = next((name for name in stored.target.columns if name in columns), None)
        choice = ChosenSetting("target", str(target), "as in the model's stored preprocessing")
    choices = list[ChosenSetting]()
    for name in other_targets(config, columns, ports, target):
        del columns[name]
        choices.append(ChosenSetting("left out", name, "the name of an output that is not trained"))
    matched: dict[str, tuple[str, ...]] = {}
    made_of_text, vocabulary = None, opened.vocabulary
    rest = ports
    if reused is not None and stored is not None and stored.vocabulary is not None:
        vocabulary = stored.vocabulary if stored.vocabulary.columns else vocabulary
    if opened.vocabulary is not None and config.inputs is None:
        config = with_token_inputs(config, ports, columns)
    if reused is None:
        if vocabulary is None:
            made_of_text = tokenize_columns(config, ports, columns, target, tokenizer, length)
        if made_of_text is not None:
            vocabulary = made_of_text.tokenizer
            choices += made_of_text.choices
            config, rest = without_inputs(config, ports, made_of_text)
            columns = {n: each for n, each in columns.items() if n not in vocabulary.columns}
        keep_one = target is None and config.loss != "output" and not is_reconstruction(ports)
        unread = [
            name
            for name, each in opened.training.columns.items()
            if each.dtype == UNREADABLE and name not in config.ignore_columns
        ]
        matched, found = match_inputs(config, columns, rest, target, keep_one, unread)
        choices += found
    if vocabulary is None:
        _check_no_text_settings(config, columns)
    if target is None and config.loss != "output":
        taken = {name for names in matched.values() for name in names}
        taken |= {name for source in reused or () for name in source.columns}
        left = [name for name in columns if name not in taken]
        left = [] if is_reconstruction(ports) else left
        target, choice = leftover_target(left, ports, list(columns))
    choices += [] if choice is None else [choice]
    facts = None
    if target is not None:
        facts = read_target(opened.training, target, None, opened.class_names(target))
        if opened.validation is not None:
            facts = with_held_out(facts, opened.validation)
        if facts.unseen:
            shown = ", ".join(map(str, facts.unseen[:6]))
            choices.append(
                ChosenSetting("classes not trained", shown, "only held-out rows have them")
            )
    rows = split_rows(config, opened, facts)
    choices.append(rows.choice)
    if reused is not None:
        choices.append(ChosenSetting("preprocessing", "of the model", "it was stored with it"))
        return PlannedColumns(target, reused, choices, rows, facts, vocabulary)
    if is_reconstruction(ports) and ports.scores.ending == "Sigmoid":
        config = config.model_copy(update={"standardize": False})  # outputs are between 0 and 1
    if own_scaling is not None and config.standardize is None:
        config = config.model_copy(update={"standardize": False})
        choices.append(ChosenSetting("standardize", "no", own_scaling))
    sources, made = make_sources(config, rest, matched, opened.training, rows)
    if made_of_text is not None:
        sources = (*made_of_text.sources, *sources)
    return PlannedColumns(target, sources, [*choices, *made], rows, facts, vocabulary)


def _stored_sources(
    config: TrainConfig,
    ports: ModelPorts,
    columns: dict[str, Column],
    stored: Preprocessing | None,
) -> tuple[FeedSource, ...] | None:
    """The inputs of an earlier training of this model, if the data has their columns."""
    if stored is None or config.inputs is not None or config.standardize is not None:
        return None
    if config.tokenizer is not None or (config.block is not None and stored.vocabulary is not None):
        return None
    feeds = {source.feed for source in stored.inputs}
    known = all(name in columns for name in stored.needed_columns(target=False))
    return stored.inputs if known and feeds == {each.name for each in ports.inputs} else None


def _check_no_text_settings(config: TrainConfig, columns: dict[str, Column]) -> None:
    """Refuse settings of texts where no input is made of texts."""
    is_given = {
        "tokenizer": config.tokenizer not in (None, CHARACTERS),
        "block": config.block is not None and NEXT_TOKENS not in columns,
    }
    for name in (name for name, given in is_given.items() if given):
        raise OptionError(
            f"{name} is for texts, but no input of the model is made of a column or a file of "
            "texts\nleave it out"
        )


def _batch_size(size: int, ports: ModelPorts) -> tuple[int, list[ChosenSetting]]:
    """The batch size, or the one that the model's inputs fix."""
    fixed = {each.shape[0] for each in ports.inputs if each.shape and each.shape[0] is not None}
    if not fixed:
        return size, []
    [own] = list(fixed)[:1]
    assert own is not None
    why = "the model was exported with this batch size; rows that do not fill one are left out"
    return own, [ChosenSetting("batch size", str(own), why)]


def _new_feed(model: ir.Model, wish: str, *others: str) -> str:
    """A name for a feed of the loss that no value of the model and no other feed has."""
    return str(free_name(wish, {*taken_names(model), *others}))


def _port_of(ports: ModelPorts, chosen: ChosenLoss) -> TensorPort:
    scores = ports.scores
    return scores.scores if scores.scores.name == chosen.output else scores.output
