"""The report of a load test: its figures as JSON, and what makes them doubtful."""

from __future__ import annotations

from typing import Any

from onward.formatting import percent, show_seconds
from onward.serving.load_test.latency_histogram import PERCENTILES, LatencyHistogram
from onward.serving.load_test.load_figures import LoadFigures
from onward.serving.load_test.load_plan import LoadPlan

BUSY = 0.9  # of a core: a client that is busier measures itself
LATE = 0.005  # seconds: more than an event loop's timers are late without load


def make_report(plan: LoadPlan, model: str, form: str, figures: LoadFigures) -> dict[str, Any]:
    """All figures of a load test, times in seconds."""
    return {
        "server": plan.url,
        "model": model,
        "form": form,
        "loop": "closed" if plan.rate is None else "open",
        "arrivals": None if plan.rate is None else plan.arrivals,
        "rate": plan.rate,
        "connections": plan.connections,
        "processes": figures.processes,
        "seconds": figures.seconds,
        "complete": figures.is_complete,
        "requests": figures.outcomes.total(),
        "throughput": figures.throughput,
        "errors": figures.errors,
        "outcomes": dict(figures.outcomes.most_common()),
        "latency": describe_latencies(figures.latencies),
        "error_latency": describe_latencies(figures.error_latencies),
        "client": {
            "cpu_share": figures.cpu_share,
            "late_p99": figures.lateness.percentile(99),
            "unsent": figures.unsent,
        },
        "warnings": find_warnings(plan, figures),
    }


def describe_latencies(latencies: LatencyHistogram) -> dict[str, float] | None:
    """Percentiles, mean and extremes in seconds; None without latencies."""
    if not latencies.count:
        return None
    named = {f"p{percent:g}": latencies.percentile(percent) for percent in PERCENTILES}
    extremes = {"min": latencies.minimum, "mean": latencies.mean, "max": latencies.maximum}
    return {"count": latencies.count} | named | extremes


def find_warnings(plan: LoadPlan, figures: LoadFigures) -> list[str]:
    """Why the figures may show the client, or the connections, instead of the server."""
    found = []
    late = figures.lateness.percentile(99)
    if figures.cpu_share >= BUSY:
        found.append(
            f"the client is the bottleneck: a process of it used {percent(figures.cpu_share)} of a "
            f"core; use more than --processes {figures.processes}"
        )
    elif late > max(LATE, figures.latencies.percentile(50) / 2):
        found.append(
            f"the client's event loop was late by {show_seconds(late)} (p99), which is in the "
            "latencies: give it a core of its own, or --processes"
        )
    if figures.unsent:
        found.append(
            f"{figures.unsent:,} requests found none of the {plan.connections} connections free: "
            "the server does not keep up with this rate, or needs more --connections"
        )
    count = figures.latencies.count
    if 0 < count < 1000:
        found.append(f"{count:,} answers are too few for p99.9: measure longer with --seconds")
    return found
