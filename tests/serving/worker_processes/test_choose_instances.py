"""choose_instances: the search by given measurements, and one real measurement."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import onward
from onward.serving.settings import ModelSettings
from onward.serving.worker_processes.choose_instances import (
    InstanceCandidate,
    choose_instances,
    instance_counts,
    provider_lists,
)

AUTO = ModelSettings(instances="auto")


def test_named_settings_are_not_measured() -> None:
    settings = ModelSettings(instances=2, providers=["CPUExecutionProvider"])
    assert choose_instances("no such file", settings) is settings


def test_the_fastest_count_is_chosen_and_explained(caplog: pytest.LogCaptureFixture) -> None:
    rates = {1: 100.0, 2: 180.0, 4: 150.0}
    with caplog.at_level(logging.INFO, "onward.serving"):
        found = choose_instances(
            "model.onnx", AUTO, measure=lambda each, _: rates[each.instances], cores=4
        )
    assert (found.instances, found.threads, found.providers) == (2, 2, None)
    (line,) = caplog.messages
    assert line == (
        "model.onnx: chose 2 instances x 2 threads (runs per second: 2 instances x 2 threads: 180; "
        "4 instances x 1 threads: 150; 1 instance: 100)"
    )


def test_more_instances_must_be_worth_their_memory() -> None:
    rates = {1: 100.0, 2: 104.0, 4: 104.0}
    found = choose_instances("m", AUTO, measure=lambda each, _: rates[each.instances], cores=4)
    assert (found.instances, found.threads) == (1, 0)


def test_the_fastest_provider_is_chosen() -> None:
    def measure(each: InstanceCandidate, _: float) -> float:
        return 200.0 if each.providers == provider_lists()[-1] else 100.0

    settings = ModelSettings(providers="auto", instances=1, threads=3)
    found = choose_instances("m", settings, measure=measure, cores=4)
    assert found.providers == list(provider_lists()[-1])
    assert (found.instances, found.threads) == (1, 3)


def test_no_time_keeps_the_defaults() -> None:
    settings = ModelSettings(instances="auto", providers="auto")
    found = choose_instances("m", settings, measure=lambda *_: 1.0, budget=0.0)
    assert (found.instances, found.threads, found.providers) == (1, 0, None)


def test_a_candidate_that_fails_is_not_chosen() -> None:
    found = choose_instances(
        "m", AUTO, measure=lambda each, _: None if each.instances > 1 else 1.0, cores=2
    )
    assert found.instances == 1


def test_worker_processes_are_counted_by_the_user() -> None:
    settings = ModelSettings(instances="auto", workers=3)
    assert choose_instances("m", settings, measure=lambda *_: 1.0).instances == 3


def test_counts_divide_the_cores() -> None:
    assert instance_counts(1, 0) == [(1, 0)]
    assert instance_counts(6, 0) == [(1, 0), (2, 3), (4, 1)]
    assert instance_counts(64, 0)[-1] == (8, 8)
    assert instance_counts(8, 4) == [(1, 4), (2, 4)]


def test_a_model_is_measured_in_a_process(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    path = tmp_path / "model.onnx"
    onward.save(op.model(y=op.Neg(op.input("x", "float32", ("n", 4)))), path)
    found = choose_instances(path, AUTO, budget=60.0, cores=2)
    assert (found.instances, found.threads) in ((1, 0), (2, 1))
