"""Quarantine: which deaths count, and when a model is given up."""

from __future__ import annotations

from onward.serving.worker_processes.quarantine import Quarantine


def test_three_deaths_in_a_row_quarantine_a_model() -> None:
    quarantine = Quarantine("digits")
    for now in (0.0, 1.0):
        quarantine.on_death(now, "it died of SIGSEGV\nmore")
        assert quarantine.reason is None
    quarantine.on_death(2.5, "it died of SIGSEGV\nmore")
    assert quarantine.reason == (
        "model 'digits' is quarantined: it killed 3 worker processes within 2 s; "
        "the last one: it died of SIGSEGV\n"
        "fix it, then load it again: POST /v2/repository/models/digits/load"
    )


def test_deaths_far_apart_do_not_add_up() -> None:
    quarantine = Quarantine("digits", window=60.0)
    for now in (0.0, 59.0, 61.0, 120.0, 200.0):
        quarantine.on_death(now, "")
        assert quarantine.reason is None
    quarantine.on_death(201.0, "")
    quarantine.on_death(202.0, "")
    assert quarantine.reason is not None


def test_answered_runs_reset_the_count() -> None:
    quarantine = Quarantine("digits", forgiving_runs=2)
    for now in range(50):
        quarantine.on_death(float(now), "")
        quarantine.on_success()
        quarantine.on_success()
    assert quarantine.reason is None


def test_a_few_answered_runs_do_not() -> None:
    quarantine = Quarantine("digits", forgiving_runs=3)
    for now in range(3):
        quarantine.on_death(float(now), "")
        quarantine.on_success()
    assert quarantine.reason is not None


def test_runs_do_not_lift_a_quarantine() -> None:
    quarantine = Quarantine("digits", max_deaths=1, forgiving_runs=1)
    quarantine.on_death(0.0, "")
    quarantine.on_success()
    assert quarantine.reason is not None
