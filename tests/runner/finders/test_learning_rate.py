"""The learning-rate range test: it suggests a rate that trains, and leaves no trace."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD, AdamW, Cosine
from onward.optimizers.optimizer import Optimizer
from onward.runner.figures.figure import Line
from onward.runner.figures.svg import svg_text
from onward.runner.finders.learning_rate import find_learning_rate, suggest_rate
from onward.runner.finders.rate_figure import draw_rate_search
from tests.runner.finetune.finetune_models import random

X = random(32, 6)
BATCHES = [{"x": X, "target": X @ random(6, 2, seed=1)}]


def session(optimizer: Optimizer, **options: Any) -> onward.TrainingSession:
    op = onward.OpBuilder()
    h = op.Tanh(op.MatMul(op.input("x", "float32", ("batch", 6)), op.initializer("a", X[:6])))
    model = op.model(y=op.MatMul(h, op.initializer("b", random(6, 2, seed=2))))
    return onward.TrainingSession(model, MSE(), optimizer, options)


@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), AdamW(lr=1.0)], ids=["SGD", "AdamW"])
def test_the_suggested_rate_trains(optimizer: Optimizer) -> None:
    search = find_learning_rate(lambda: session(optimizer), BATCHES)
    assert 1e-4 < search.suggestion < 1.0 and search.reason == "the loss falls fastest"
    trained = session(type(optimizer)(lr=search.suggestion))
    losses = [float(trained.step(BATCHES[0])["loss"]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_search_stops_where_the_loss_diverges() -> None:
    search = find_learning_rate(lambda: session(SGD()), BATCHES, highest=1e6)
    assert 20 < len(search.points) < 100
    rates = [rate for rate, _ in search.points]
    assert rates[0] == pytest.approx(1e-7)
    assert np.allclose(np.diff(np.log(rates)), math.log(1e13) / 99)


def test_the_search_uses_a_session_of_its_own() -> None:
    opened = [session(SGD())]
    before = opened[0].parameters["a"].copy()
    find_learning_rate(lambda: opened[0], BATCHES, steps=8, highest=1e-3)
    with pytest.raises(onward.errors.SessionClosed):
        opened[0].step(BATCHES[0])
    np.testing.assert_array_equal(session(SGD()).parameters["a"], before)


def test_batches_are_accumulated_and_an_iterator_is_read_once() -> None:
    make = lambda: session(SGD(), accumulate=2)  # noqa: E731
    assert len(find_learning_rate(make, iter(BATCHES * 21), steps=50).points) == 10
    assert len(find_learning_rate(make, BATCHES * 3, steps=12, highest=1e-3).points) == 12
    with pytest.raises(OptionError, match="finite at 2 learning rates, fewer than 8"):
        find_learning_rate(make, iter(BATCHES * 4))
    with pytest.raises(OptionError, match="finite at 0 learning rates"):
        find_learning_rate(make, [])


def test_a_loss_that_never_falls_gives_a_tenth_of_its_lowest_point() -> None:
    points = [(10.0**i, 1.0 if i < -2 else 2.0) for i in range(-9, 1)]
    search = suggest_rate(points)
    assert search.suggestion == pytest.approx(1e-10)
    assert search.reason == "a tenth of the rate of the lowest loss"


def test_a_session_with_a_schedule_is_refused() -> None:
    with pytest.raises(OptionError, match="a session with a schedule"):
        find_learning_rate(lambda: session(SGD(), schedule=Cosine(steps=9)), BATCHES)
    with pytest.raises(OptionError, match="not below highest"):
        find_learning_rate(lambda: session(SGD()), BATCHES, lowest=1.0, highest=0.1)


def test_the_figure_shows_the_suggestion() -> None:
    search = find_learning_rate(lambda: session(AdamW()), BATCHES)
    figure = draw_rate_search(search)
    lines = {mark.name: mark for mark in figure.marks if isinstance(mark, Line)}
    [(left, _), (right, _)] = lines["suggestion"].points
    assert left == right and 80 < left < figure.width - 30
    assert "1e-04" in svg_text(figure)


@pytest.mark.parametrize("seed", range(6))
def test_differences_between_batches_are_no_fall(seed: int) -> None:
    rates = np.geomspace(1e-7, 10, 100)
    noise = np.random.default_rng(seed).choice([-0.3, 0.3], 100)
    noise[:2] = 0.3, -0.3  # the first batch has the larger loss
    losses = 2 - 1.5 / (1 + (1e-2 / rates) ** 2) + 8 * (rates > 3) + noise
    search = suggest_rate(list(zip(rates.tolist(), losses.tolist(), strict=True)))
    assert 1e-3 < search.suggestion < 0.2
    assert search.reason == "the loss falls fastest"
