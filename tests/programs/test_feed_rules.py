"""FeedRules: feeds checked for any engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import FeedError
from onward.graph.node_args import describe
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.programs.build import build_program
from onward.programs.feed_rules import FeedRules, select_results
from tests.sessions.training.small import batches, mlp

PROGRAM = build_program(mlp(), CrossEntropy(), SGD())
ARGUMENTS = [describe(value) for value in PROGRAM.train.graph.inputs]


def rules(**options: Any) -> FeedRules:
    return FeedRules(ARGUMENTS, PROGRAM.layout, **options)


def test_feeds_are_the_inputs_that_the_program_does_not_hold() -> None:
    assert [argument.name for argument in rules().arguments] == ["x", "labels"]
    assert rules().labels == ["labels"]


def test_feeds_that_fit_pass() -> None:
    [feeds] = batches(1)
    one = rules()
    one.check_mapping(feeds)
    one.check(feeds)
    one.check_labels(feeds)
    assert one.targets_fit(feeds) and not one.is_empty(feeds)


def test_feeds_that_are_not_a_dictionary_are_refused() -> None:
    with pytest.raises(FeedError, match=r"not list\ngive {'x': \.\.\., 'labels': "):
        rules().check_mapping([])


def test_labels_are_checked_where_they_are_given() -> None:
    one = rules()
    one.check_labels({})
    with pytest.raises(FeedError, match="'labels' holds 9"):
        one.check_labels({"labels": np.array([9])})


def test_targets_of_other_sizes_do_not_fit() -> None:
    [feeds] = batches(1)
    assert not rules().targets_fit({**feeds, "labels": feeds["labels"][:3]})


def test_an_empty_batch_has_results_of_its_sizes() -> None:
    empty = {name: array[:0] for name, array in batches(1)[0].items()}
    one = rules()
    assert one.is_empty(empty)
    outputs = [describe(value) for value in PROGRAM.evaluate.graph.outputs]
    logits, loss = one.results_of_empty(select_results(outputs, ["logits", "loss"]), empty)
    assert np.isnan(loss) and logits.shape == (0, 4)


def test_a_graph_selects_the_feeds_that_it_reads() -> None:
    [feeds] = batches(1)
    part = FeedRules([a for a in ARGUMENTS if a.name == "x"], PROGRAM.layout, partial=True)
    assert list(part.select(feeds)) == ["x"]
    assert list(part.select({**feeds, "other": 1})) == ["x", "labels", "other"]
    assert list(rules().select(feeds)) == ["x", "labels"]
