"""Perplexity and token accuracy of (batch, time, vocabulary)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.language import Perplexity, token_accuracy
from onward.runner.metrics.make_metric import make_metric

RNG = np.random.default_rng(4)
LOGITS, TOKENS = RNG.normal(size=(2, 5, 5)), RNG.integers(0, 5, (2, 5))  # time = vocabulary


def test_perplexity_is_the_inverse_geometric_mean_of_probabilities() -> None:
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)
    own = [p[i, t, TOKENS[i, t]] for i in range(2) for t in range(5)]
    metric = Perplexity()
    metric.update(LOGITS, TOKENS)
    assert metric.result() == pytest.approx(math.prod(own) ** (-1 / 10), rel=1e-12)
    assert not metric.higher_is_better


def test_padding_is_ignored() -> None:
    padded = TOKENS.copy()
    padded[:, 3:] = -100
    metric, short = make_metric("perplexity", ignore_index=-100), Perplexity()
    metric.update(LOGITS, padded)
    short.update(LOGITS[:, :3], TOKENS[:, :3])
    assert metric.result() == short.result()


def test_a_hopeless_perplexity_is_infinite() -> None:
    metric = Perplexity()
    metric.update([[[1e4, 0.0]]], [[1]])
    assert metric.result() == math.inf


def test_token_accuracy_is_the_share_of_right_tokens() -> None:
    metric = token_accuracy()
    metric.update(LOGITS, TOKENS)
    assert metric.result() == np.mean(LOGITS.argmax(-1) == TOKENS)
    assert token_accuracy(ScoreSettings(axis=1)).name == "token_accuracy"
