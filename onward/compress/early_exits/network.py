"""A classifier that is ready for exits, and the model with exits that is written from it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Calibration, Feeds
from onward.compress.dynamic_batch import (
    check_axes,
    input_axes,
    make_fixed_batch_dynamic,
    make_observed_reshapes_dynamic,
    restore_fixed_batch,
)
from onward.compress.early_exits.batch_facts import (
    BatchFacts,
    open_session,
    probe_feeds,
    select_rows,
)
from onward.compress.early_exits.compaction import (
    EXIT_OUTPUT,
    Compaction,
    Stages,
    crossing_values,
    divide,
)
from onward.compress.early_exits.heads import (
    Head,
    confidence,
    confidences,
    plan_head,
    pool,
    score,
    threshold_name,
)
from onward.compress.early_exits.thresholds import NEVER
from onward.compress.early_exits.training import are_probabilities, collect_answers
from onward.errors import OnwardError, OptionError, UnsupportedModel
from onward.graph.costs.node_costs import model_costs
from onward.graph.files import Source, load
from onward.graph.graph_ops import GraphOps
from onward.message_text import first_line, suggest_names
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import PREPARE

_FINAL = ("Softmax", "LogSoftmax", "Identity")  # exits answer what these read
_TOLERANCE = 1e-3  # relative to the largest score, in the check of the written model


@dataclass(frozen=True, kw_only=True)
class ExitNetwork:
    """A prepared classifier and where its exits are.

    Attributes:
        model: prepared, with a dynamic batch
        fixed_batch: the batch that the original fixes; None if it is dynamic
        axes: the batch axis of each input
        scores: the name of the value that exits answer
        classes: the number of scores of a row
        gives_probabilities: whether the scores are probabilities
        heads: one for each exit, without weights, in the order of the graph
        costs: of a row that leaves at each exit, as a share of the whole network's
        feeds: a few rows to try it with
    """

    model: ir.Model
    fixed_batch: int | None
    axes: dict[str, int]
    scores: str
    classes: int
    gives_probabilities: bool
    heads: tuple[Head, ...]
    costs: tuple[float, ...]
    feeds: Feeds


def prepare_network(
    source: Source,
    at: Sequence[str],
    *,
    output: str | None,
    data: Any,
    target: str | None,
    batch: int | None,
    head: str,
    seed: int,
) -> tuple[ExitNetwork, Calibration]:
    """Prepare a model for exits; refuse what cannot have them. The source is not changed."""
    loaded = load(source)
    model = PREPARE(loaded.clone() if loaded is source else loaded)
    scores = _find_scores(model, output)
    cuts = _find_cuts(model, at)
    fixed = make_fixed_batch_dynamic(model)
    axes = input_axes(model, scores)
    check_axes(axes)
    try:
        inputs = open_session(model).get_inputs()
        rows = Calibration(data, inputs, target=target, batch=batch, seed=seed)
        feeds = probe_feeds(model, axes, None if data is None else rows.first(), seed)
        _fix_reshapes(model, feeds, axes)
        drop_unused(model)  # what computed the sizes before
        stages = divide(model.graph, cuts, scores)
        facts = BatchFacts(model, crossing_values(model.graph, stages), feeds, axes)
    except UnsupportedModel:
        raise
    except OnwardError as error:
        if fixed is None:
            raise
        raise UnsupportedModel(
            f"the model fixes its batch of {fixed} and does not run with others: "
            f"{first_line(error)}\nexport it with a dynamic batch"
        ) from error
    sample = _sample_shapes(model, [scores, *stages.cuts], feeds, axes)
    classes = _check_scores(scores, facts, sample[0])
    heads = [
        plan_head(cut, _row_axis(cut, facts), shape, head)
        for cut, shape in zip(stages.cuts, sample[1:], strict=True)
    ]
    probe = open_session(_with_outputs(model, [scores])).run(None, feeds)[0]
    network = ExitNetwork(
        model=model,
        fixed_batch=fixed,
        axes=axes,
        scores=str(scores.name),
        classes=classes,
        gives_probabilities=are_probabilities(probe),
        heads=tuple(heads),
        costs=_costs(model, stages, feeds),
        feeds=feeds,
    )
    return network, rows


def _fix_reshapes(model: ir.Model, feeds: Feeds, axes: Mapping[str, int]) -> None:
    """Write sizes of Reshape as numbers, so that it also runs on 0 rows."""
    for value in model.graph.inputs:
        for place, size in enumerate(value.shape or ()):
            if not isinstance(size, int) and axes.get(str(value.name)) != place:
                return  # a size that was seen is not one for all runs
    made = [n.outputs[0] for n in model.graph if n.op_type == "Reshape" and not n.domain]
    if not made:
        return
    session = open_session(_with_outputs(model, made))
    two = session.run(None, select_rows(feeds, axes, np.array([0, 1])))
    three = session.run(None, select_rows(feeds, axes, np.array([2, 3, 4])))
    pairs = zip(made, two, three, strict=True)
    make_observed_reshapes_dynamic(
        model, {str(v.name): (np.shape(a), np.shape(b)) for v, a, b in pairs}
    )


def _find_scores(model: ir.Model, output: str | None) -> ir.Value:
    graph = model.graph
    made = {str(value.name): value for node in graph for value in node.outputs}
    if output is not None and output not in made:
        names = [str(value.name) for value in graph.outputs]
        raise OptionError(f"no output {output!r}; {suggest_names(output, names, 'the model has')}")
    found = graph.outputs[0] if output is None else made[output]
    while (node := found.producer()) is not None and node.op_type in _FINAL and not node.domain:
        axis = node.attributes.get_int("axis", -1)
        before = node.inputs[0]
        rank = -1 if found.shape is None else len(found.shape)
        if before is None or before.producer() is None or axis not in (-1, rank - 1):
            break
        found = before
    return found


def _find_cuts(model: ir.Model, at: Sequence[str]) -> list[ir.Value]:
    if isinstance(at, str):
        at = [at]
    if not at:
        raise OptionError("no exits: give at=, the names of inner values of the model")
    made = {str(value.name): value for node in model.graph for value in node.outputs}
    by_node = {str(node.name): node.outputs[0] for node in model.graph if node.name}
    found = []
    for name in at:
        value = made.get(name, by_node.get(name))
        if value is None:
            names = sorted(made)
            raise OptionError(
                f"the model has no inner value {name!r}\n{suggest_names(name, names, 'it has')}"
            )
        if value in found:
            raise OptionError(f"two exits at {name!r}: name each value once")
        found.append(value)
    return found


def _row_axis(cut: ir.Value, facts: BatchFacts) -> int:
    axis = facts.axis(cut)
    if axis is None or axis < 0:
        raise UnsupportedModel(
            f"{cut.name!r} has no batch axis: rows cannot leave there\nname another value"
        )
    return axis


def _check_scores(scores: ir.Value, facts: BatchFacts, shape: tuple[int, ...]) -> int:
    if len(shape) != 2 or facts.axis(scores) != 0:
        raise UnsupportedModel(
            f"exits answer with one row of scores for each sample: (batch, classes), and "
            f"{scores.name!r} has shape {shape}\nname another value with output="
        )
    if shape[1] < 2:
        raise UnsupportedModel(
            f"{scores.name!r} has one number for each sample: exits need at least 2 classes"
        )
    return shape[1]


def _with_outputs(model: ir.Model, values: Sequence[ir.Value]) -> ir.Model:
    copy = model.clone()
    made = {str(value.name): value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [made[str(value.name)] for value in values]
    return copy


def _sample_shapes(
    model: ir.Model, values: Sequence[ir.Value], feeds: Feeds, axes: Mapping[str, int]
) -> list[tuple[int, ...]]:
    names = list(dict.fromkeys(values))
    session = open_session(_with_outputs(model, names))
    outputs = session.run(None, select_rows(feeds, axes, np.array([0, 1])))
    shapes = {value: np.shape(y) for value, y in zip(names, outputs, strict=True)}
    return [tuple(map(int, shapes[value])) for value in values]


def _costs(model: ir.Model, stages: Stages, feeds: Feeds) -> tuple[float, ...]:
    """The share of all operations that a row has done when it reaches each exit."""
    sizes = {
        f"{value.name}:{place}": int(np.shape(feeds[str(value.name)])[place])
        for value in model.graph.inputs
        for place, size in enumerate(value.shape or ())
        if not isinstance(size, int)
    }
    flops = [each.cost.flops for each in model_costs(model, sizes).nodes]
    done = [0.0] * (len(stages.cuts) + 1)
    for node, each in zip(model.graph, flops, strict=True):
        if node in stages.of:
            done[stages.of[node]] += each
    total = sum(done) or 1.0
    return tuple(float(x) for x in np.cumsum(done)[:-1] / total)


def head_scores(features: Array, head: Head) -> Array:
    """A head's scores in numpy."""
    x = features
    if "hidden.weight" in head.weights:
        x = np.maximum(x @ head.weights["hidden.weight"] + head.weights["hidden.bias"], 0)
    return np.asarray(x @ head.weights["weight"] + head.weights["bias"])


def write_exits(
    network: ExitNetwork, heads: Sequence[Head], criterion: str, *, exit_output: bool
) -> tuple[ir.Model, bool]:
    """The model with exits, checked on a few rows; and whether one row of a batch always goes on.

    The latter is so where the engine cannot run the rest of the network on an empty batch.
    """
    failure: OnwardError | None = None
    for keep_one in (False, True):
        model = _write(network, heads, criterion, exit_output, keep_one)
        try:
            _check(network, model, heads, criterion)
        except OnwardError as error:
            if isinstance(error, UnsupportedModel):
                raise
            failure = failure or error
            continue
        restore_fixed_batch(model, network.fixed_batch, network.axes)
        with contextlib.suppress(UnsupportedModel):  # a model that only the newest opset has
            model = lower_opset(model, STOCK_OPSET)
        return model, keep_one
    assert failure is not None
    raise UnsupportedModel(
        f"the model with exits does not run: {first_line(failure)}\nput the exits elsewhere"
    )


def _write(
    network: ExitNetwork, heads: Sequence[Head], criterion: str, exit_output: bool, keep_one: bool
) -> ir.Model:
    model = network.model.clone()
    values = {str(v.name): v for node in model.graph for v in node.outputs}
    taken = {*values, *model.graph.initializers, *(str(v.name) for v in model.graph.inputs)}
    if clash := sorted(n for n in taken if n == EXIT_OUTPUT or n.startswith("exit_0.")):
        raise UnsupportedModel(
            f"the model has a value of the name {clash[0]!r}, which exits use\nrename it"
        )
    stages = divide(model.graph, [values[head.name] for head in heads], values[network.scores])
    names = crossing_values(model.graph, stages)
    facts = BatchFacts(model, names, network.feeds, network.axes)

    def build_head(op: GraphOps, x: ir.Value, number: int) -> tuple[ir.Value, ir.Value, ir.Value]:
        head = heads[number]
        scores = score(op, pool(op, x, head), head, number)
        sure = confidence(op, scores, criterion)
        threshold = op.initializer(threshold_name(number), np.float32(head.threshold))
        return (op.Softmax(scores) if network.gives_probabilities else scores), sure, threshold

    Compaction(model, stages, facts, keep_one=keep_one).write(build_head, exit_output=exit_output)
    return model


def set_thresholds(model: ir.Model, thresholds: Sequence[float]) -> ir.Model:
    """Set the thresholds of a model with exits in place, and return it."""
    for number, threshold in enumerate(thresholds):
        name = threshold_name(number)
        if name not in model.graph.initializers:
            raise OptionError(f"the model has no initializer {name!r}: it has no such exit")
        tensor = ir.tensor(np.array(threshold, np.float32), name=name)
        model.graph.initializers[name].const_value = tensor
    return model


def _check(network: ExitNetwork, model: ir.Model, heads: Sequence[Head], criterion: str) -> None:
    """Try it with no, some and all rows leaving: rows that go on must be unchanged."""
    names = [str(v.name) for v in network.model.graph.outputs]
    expected = open_session(network.model).run(names, network.feeds)
    probe = collect_answers(
        network.model, network.scores, heads, [(network.feeds, None)], network.axes
    )
    sure = [
        confidences(head_scores(x, h), criterion)
        for x, h in zip(probe.features, heads, strict=True)
    ]
    count = len(heads)
    tries = [[NEVER] * count]
    tries += [[-1.0 if i == number else NEVER for i in range(count)] for number in range(count)]
    tries += [[float(np.median(each)) for each in sure]]
    for thresholds in tries:
        session = open_session(set_thresholds(model.clone(), thresholds))
        taken = np.full(len(sure[0]), count)
        for number in reversed(range(count)):
            taken[sure[number] >= thresholds[number]] = number
        outputs = session.run(names, network.feeds)
        for name, y, z in zip(names, expected, outputs, strict=True):
            _compare_rows(name, y, z, taken == count)


def _compare_rows(name: str, y: Any, z: Any, stayed: Array) -> None:
    if not isinstance(y, np.ndarray) or y.dtype.kind != "f" or len(y) != len(stayed):
        return
    if np.shape(z) != y.shape:
        raise UnsupportedModel(f"with exits, the output {name!r} has shape {np.shape(z)}")
    y, z = y[stayed].astype(np.float64), z[stayed].astype(np.float64)
    if y.size and not np.abs(y - z).max() <= _TOLERANCE * max(1.0, float(np.abs(y).max())):
        raise UnsupportedModel(
            f"rows that go on get other answers in a smaller batch (output {name!r}): the rows of "
            "a batch depend on each other behind an exit\nput the exits behind what mixes them"
        )


def with_thresholds(heads: Sequence[Head], thresholds: Sequence[float]) -> list[Head]:
    """The heads with these thresholds."""
    return [replace(h, threshold=t) for h, t in zip(heads, thresholds, strict=True)]
