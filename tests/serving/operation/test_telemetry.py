"""Telemetry: a span for each request with its children, under the client's trace."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from onward.errors import PackageMissing, RequestInvalid, ServerOverloaded
from onward.serving.observer import RequestTimes
from onward.serving.operation.telemetry import Telemetry, open_telemetry

NOW = 1_000_000_000_000
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans() -> Any:
    """Tells a telemetry of one request, and returns its spans by name."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

    def observe(times: RequestTimes, error: Exception | None = None) -> dict[str, Any]:
        kept = memory.InMemorySpanExporter()
        provider = sdk.TracerProvider()
        provider.add_span_processor(export.SimpleSpanProcessor(kept))
        telemetry = Telemetry(provider, lambda: NOW)
        telemetry.on_request("digits", "1", "a1", times, error)
        telemetry.close()
        return {span.name: span for span in kept.get_finished_spans()}

    return observe


def test_span_has_queue_and_run_as_children(spans: Any) -> None:
    found = spans(RequestTimes(0.5, 0.1, 0.2, 0.2, 4))
    request, queue, run = found["infer digits"], found["queue"], found["run"]
    assert (request.end_time, run.end_time) == (NOW, NOW)
    assert request.start_time == queue.start_time == NOW - 10**9
    assert queue.end_time == run.start_time == NOW - 10**9 // 2
    assert queue.parent.span_id == run.parent.span_id == request.context.span_id
    assert request.attributes["onward.batch_size"] == 4
    assert request.attributes["onward.request_id"] == "a1"
    assert request.parent is None and request.status.is_ok


def test_traceparent_is_the_parent(spans: Any) -> None:
    header = f"00-{TRACE}-b7ad6b7169203331-01"
    request = spans(RequestTimes(traceparent=header))["infer digits"]
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"


def test_traceparent_that_is_not_sampled_makes_no_span(spans: Any) -> None:
    assert spans(RequestTimes(traceparent=f"00-{TRACE}-b7ad6b7169203331-00")) == {}


def test_malformed_traceparent_is_ignored(spans: Any) -> None:
    assert spans(RequestTimes(traceparent="00-x\n"))["infer digits"].parent is None


def test_failure_of_the_server_is_an_error_that_of_the_client_is_not(spans: Any) -> None:
    failed = spans(RequestTimes(), ServerOverloaded("full"))
    assert not failed["infer digits"].status.is_ok and "run" not in failed
    assert failed["infer digits"].attributes["error.type"] == "ServerOverloaded"
    assert spans(RequestTimes(), RequestInvalid("x"))["infer digits"].status.is_ok


@pytest.mark.parametrize("module", ["opentelemetry.sdk.trace", "opentelemetry.exporter"])
def test_missing_package_names_the_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PackageMissing, match=r"pip install 'onward\[telemetry\]'"):
        open_telemetry("http://127.0.0.1:4318/v1/traces", lambda: NOW)


def test_console_prints_spans(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    telemetry = open_telemetry("console", lambda: NOW)
    telemetry.on_request("digits", "1", "", RequestTimes(batch_size=1), None)
    telemetry.close()
    assert '"name": "infer digits"' in capsys.readouterr().out
