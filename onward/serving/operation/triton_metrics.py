"""Metrics under Triton's names, for dashboards that exist already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

_MICROSECONDS = 1e6


class _Sum(Protocol):
    sum: float


class Counted(Protocol):
    """What is counted of one version of a model."""

    codes: dict[int, int]
    batches: int
    queue_length: int
    row_sum: int
    run_sum: float

    @property
    def queue(self) -> _Sum: ...

    @property
    def compute(self) -> _Sum: ...

    @property
    def request(self) -> _Sum: ...


def _failures(counts: Counted) -> int:
    return sum(number for code, number in counts.codes.items() if code != 200)


# name: type, explanation, number. Triton's counters do not end in _total, as prometheus-client's.
_METRICS: dict[str, tuple[str, str, Callable[[Counted], float]]] = {
    "nv_inference_request_success": (
        "counter", "Requests that were answered.", lambda counts: counts.codes.get(200, 0)
    ),
    "nv_inference_request_failure": ("counter", "Requests that failed.", _failures),
    "nv_inference_count": ("counter", "Rows that ran.", lambda counts: counts.row_sum),
    "nv_inference_exec_count": ("counter", "Batches that ran.", lambda counts: counts.batches),
    "nv_inference_request_duration_us": (
        "counter", "Time of requests.", lambda counts: counts.request.sum * _MICROSECONDS
    ),
    "nv_inference_queue_duration_us": (
        "counter", "Time in the queue.", lambda counts: counts.queue.sum * _MICROSECONDS
    ),
    "nv_inference_compute_infer_duration_us": (
        "counter", "Time in the model.", lambda counts: counts.run_sum * _MICROSECONDS
    ),
    "nv_inference_pending_request_count": (
        "gauge", "Requests that wait.", lambda counts: counts.queue_length
    ),
}  # fmt: skip


def triton_text(counts: Mapping[tuple[str, str], Counted]) -> bytes:
    """The metrics in Prometheus' text form."""
    lines: list[str] = []
    for name, (kind, explanation, number) in _METRICS.items():
        lines += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(key)} {number(each):.0f}" for key, each in counts.items()]
    return "\n".join([*lines, ""]).encode()


def _labels(key: tuple[str, str]) -> str:
    model, version = map(_escape, key)
    return f'{{model="{model}",version="{version}"}}'


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
