"""model_statistics: the JSON of Triton's statistics extension."""

from __future__ import annotations

from onward.serving.batching.model_statistics import ModelStatistics


def test_a_new_model_has_counted_nothing() -> None:
    found = ModelStatistics("m", "3").to_json()
    assert found["inference_stats"]["success"] == {"count": 0, "ns": 0}
    assert (found["name"], found["version"], found["last_inference"]) == ("m", "3", 0)
    assert found["batch_stats"] == []


def test_batches_and_requests_are_counted() -> None:
    statistics = ModelStatistics("m", "1")
    statistics.last_inference = 1.5
    statistics.add_batch(2, 3, 3, (0.001, 0.002, 0.003), 1)
    statistics.add_batch(1, 1, 1, (0.0, 0.002, 0.0), 1)
    statistics.add_requests(0.5, 2.0, 3)
    statistics.add_failure(0.25)
    statistics.add_cache_lookup(0.125, is_hit=True)
    statistics.add_cache_lookup(0.5, is_hit=False)
    found = statistics.to_json()
    assert (found["inference_count"], found["execution_count"]) == (4, 2)
    assert found["last_inference"] == 1500
    assert found["inference_stats"] == {
        "success": {"count": 3, "ns": 2_000_000_000},
        "fail": {"count": 1, "ns": 250_000_000},
        "queue": {"count": 3, "ns": 500_000_000},
        "compute_input": {"count": 3, "ns": 2_000_000},
        "compute_infer": {"count": 3, "ns": 6_000_000},
        "compute_output": {"count": 3, "ns": 6_000_000},
        "cache_hit": {"count": 1, "ns": 125_000_000},
        "cache_miss": {"count": 1, "ns": 500_000_000},
    }
    assert [each["batch_size"] for each in found["batch_stats"]] == [1, 3]
    assert found["batch_stats"][1]["compute_infer"] == {"count": 1, "ns": 2_000_000}
