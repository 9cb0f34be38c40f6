"""inline_runs: quick models run in the event loop's thread, also on a machine with other work."""

from __future__ import annotations

import random

from onward.serving.batching.inline_runs import InlineRuns


def after(*seconds: float) -> InlineRuns:
    runs = InlineRuns()
    for each in seconds:
        runs.observe(each)
    return runs


QUICK = [50e-6] * 16


def test_quick_batches_turn_it_on() -> None:
    assert not after(*QUICK[1:]).is_on
    assert after(*QUICK).is_on
    assert not after(*[400e-6] * 100).is_on


def test_few_slow_batches_do_not_keep_it_off() -> None:
    chance = random.Random(0)
    runs = after(*[400e-6 if chance.random() < 0.05 else 50e-6 for _ in range(200)])
    assert runs.is_on
    assert not after(*[400e-6 if i % 4 == 0 else 50e-6 for i in range(1000)]).is_on


def test_a_batch_that_the_machine_delayed_does_not_turn_it_off() -> None:
    runs = after(*QUICK)
    for _ in range(100):
        for seconds in [5e-3, *[50e-6] * 400]:
            runs.observe(seconds)
            assert runs.is_on


def test_slow_batches_turn_it_off() -> None:
    assert not after(*QUICK, 0.1).is_on
    assert not after(*QUICK, *[5e-3] * 5).is_on
    assert not after(*QUICK, *[5e-3, 50e-6] * 5).is_on


def test_a_batch_that_was_interrupted_for_long_does_not_turn_it_off() -> None:
    runs = after(*QUICK)
    for _ in range(3):
        runs.observe(0.1, computed=60e-6)
    assert runs.is_on
    for _ in range(2):  # or it waits for another device
        runs.observe(0.1, computed=60e-6)
    assert not runs.is_on
    runs = after(*QUICK)
    runs.observe(0.1, computed=0.09)
    assert not runs.is_on


def test_a_model_that_is_slow_at_times_is_tried_less_and_less_often() -> None:
    runs, tried = InlineRuns(), []
    for _ in range(3):
        count = 0
        while not runs.is_on:
            runs.observe(50e-6)
            count += 1
        tried.append(count)
        runs.observe(0.1)
    assert tried == [16, 64, 256]
    while not runs.is_on:
        runs.observe(50e-6)
    for seconds in [50e-6] * 20_000 + [0.1]:
        runs.observe(seconds)
    for seconds in QUICK:
        runs.observe(seconds)
    assert runs.is_on
