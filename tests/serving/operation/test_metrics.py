"""Metrics: what Prometheus reads equals what was observed; Triton's names on request."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from onward.errors import ModelNotFound, RequestInvalid, ServerOverloaded
from onward.serving.observer import RequestTimes
from onward.serving.operation.metrics import Metrics

TIMES = RequestTimes(queue=0.003, join=0.001, run=0.02, split=0.001, batch_size=4)


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names): value."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


def test_requests_are_counted_by_code() -> None:
    metrics = Metrics()
    for error in (None, None, RequestInvalid("x"), ServerOverloaded("y"), KeyError("bug")):
        metrics.on_request("digits", "1", "", TIMES, error)
    found = samples(metrics)
    for code, count in (("200", 2), ("400", 1), ("503", 1), ("500", 1)):
        assert found["onward_requests_total", code, "digits", "1"] == count


def test_times_of_answered_requests_are_in_histograms() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.on_request("digits", "1", "", TIMES, None)
    metrics.on_request("digits", "1", "", TIMES, ServerOverloaded("not timed"))
    found = samples(metrics)
    expected = {"queue": (0.003, "0.0025", "0.005"), "compute": (0.022, "0.01", "0.025"),
                "request": (0.025, "0.01", "0.025")}  # fmt: skip
    for name, (seconds, below, bucket) in expected.items():
        name = f"onward_{name}_seconds"
        assert found[f"{name}_count", "digits", "1"] == 3
        assert found[f"{name}_sum", "digits", "1"] == pytest.approx(3 * seconds)
        assert found[f"{name}_bucket", below, "digits", "1"] == 0
        assert found[f"{name}_bucket", bucket, "digits", "1"] == 3
        assert found[f"{name}_bucket", "+Inf", "digits", "1"] == 3


def test_batches_and_queue_are_by_model_and_version() -> None:
    metrics = Metrics()
    metrics.on_batch("digits", "1", 2, 4, 0.1)
    metrics.on_batch("digits", "1", 1, 2000, 0.1)
    metrics.on_queue("digits", "2", 7)
    found = samples(metrics)
    assert found["onward_batches_total", "digits", "1"] == 2
    assert found["onward_batch_rows_sum", "digits", "1"] == 2004
    assert found["onward_batch_seconds_sum", "digits", "1"] == pytest.approx(0.2)
    assert found["onward_batch_rows_bucket", "1024.0", "digits", "1"] == 1
    assert found["onward_queue_length", "digits", "2"] == 7


def test_states_are_asked_when_read() -> None:
    metrics = Metrics()
    index = [
        {"name": "digits", "version": "1", "state": "READY"},
        {"name": "faces", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]
    metrics.watch(
        lambda: index,
        lambda: {("digits", "1"): 5},
        lambda: {("digits", "1"): 1},
        lambda: {("digits", "1"): 2},
    )
    found = samples(metrics)
    assert found["onward_model_ready", "digits", "1"] == 1
    assert found["onward_model_ready", "faces", "2"] == 0
    assert found["onward_in_flight_requests", "digits", "1"] == 5
    assert found["onward_stuck_instances", "digits", "1"] == 1
    assert found["onward_join_rule", "digits", "1"] == 2


def test_names_that_clients_invent_take_no_memory() -> None:
    metrics = Metrics()
    for n in range(100):
        metrics.on_request(f"invented{n}", "9", "", RequestTimes(), ModelNotFound("no"))
    assert b"invented" not in metrics.text()
    assert samples(metrics)["onward_requests_total", "404", "", ""] == 100


def test_number_of_series_is_bounded() -> None:
    metrics = Metrics()
    for n in range(5000):
        metrics.on_request(f"m{n}", "1", "", TIMES, RequestInvalid("x"))
    found = samples(metrics)
    counted = [value for key, value in found.items() if key[0] == "onward_requests_total"]
    assert len(counted) == 513 and sum(counted) == 5000


def test_triton_names_are_there_on_request() -> None:
    assert b"nv_inference" not in Metrics().text()
    metrics = Metrics(triton_names=True)
    for _ in range(2):
        metrics.on_request("digits", "1", "", TIMES, None)
    metrics.on_request("digits", "1", "", TIMES, RequestInvalid("x"))
    metrics.on_batch("digits", "1", 2, 8, 0.02)
    metrics.on_queue("digits", "1", 3)
    text = metrics.text().decode()
    expected = {
        "request_success": 2, "request_failure": 1, "count": 8, "exec_count": 1,
        "request_duration_us": 50_000, "queue_duration_us": 6_000,
        "compute_infer_duration_us": 40_000, "pending_request_count": 3,
    }  # fmt: skip
    for name, value in expected.items():
        assert f'\nnv_inference_{name}{{model="digits",version="1"}} {value}\n' in text
    assert "# TYPE nv_inference_request_success counter\n" in text


def test_any_name_of_a_model_is_escaped() -> None:
    metrics, name = Metrics(triton_names=True), 'a"b\\c\nd'
    metrics.on_request(name, "1", "", TIMES, None)
    found = samples(metrics)
    assert found["onward_requests_total", "200", name, "1"] == 1
    assert found["nv_inference_pending_request_count", name, "1"] == 0


def test_each_server_has_metrics_of_its_own() -> None:
    one, other = Metrics(), Metrics()
    one.on_queue("digits", "1", 1)
    assert b"digits" not in other.text() and b"process_resident_memory_bytes" in other.text()
