"""OpenTelemetry: a span for each request, with its queue and its run as children.

Spans are made when a request has ended, from the times that were measured: nothing is added to the
path of a request that no one traces. A client's `traceparent` (W3C) is the parent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from onward.errors import PackageMissing
from onward.serving.observer import NoObserver, RequestTimes
from onward.serving.operation.error_status import status_of

_NANOSECONDS = 1_000_000_000
CONSOLE = "console"  # an address that prints spans instead of sending them


class Telemetry(NoObserver):
    """Makes spans of requests; `clock` gives nanoseconds since 1970."""

    def __init__(self, provider: Any, clock: Callable[[], int]) -> None:
        trace = _trace_module()
        self._provider, self._clock = provider, clock
        self._tracer = provider.get_tracer("onward.serving")
        self._set_in_context = trace.set_span_in_context
        self._kind, self._status = trace.SpanKind.SERVER, trace.Status
        self._error = trace.StatusCode.ERROR
        self._read_parent = _propagator().extract

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None:
        end = self._clock()
        compute = times.join + times.run + times.split
        started = end - int(compute * _NANOSECONDS)  # its batch
        arrived = started - int(times.queue * _NANOSECONDS)
        parent = (
            self._read_parent({"traceparent": times.traceparent}) if times.traceparent else None
        )
        status = status_of(error)
        attributes: dict[str, Any] = {
            "onward.model": model,
            "onward.version": version,
            "onward.batch_size": times.batch_size,
            "http.response.status_code": status,
        }
        if request_id:
            attributes["onward.request_id"] = request_id
        span = self._tracer.start_span(
            f"infer {model}", parent, self._kind, attributes, start_time=arrived
        )
        if span.is_recording():
            inside = self._set_in_context(span)
            self._child("queue", inside, arrived, started)
            if times.batch_size:
                self._child("run", inside, started, end)
            if error is not None:
                span.set_attribute("error.type", type(error).__name__)
                if status >= 500:
                    span.set_status(self._status(self._error, str(error)))
        span.end(end)

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()

    def _child(self, name: str, context: Any, start: int, end: int) -> None:
        self._tracer.start_span(name, context, start_time=start).end(end)


def open_telemetry(address: str, clock: Callable[[], int]) -> Telemetry:
    """Spans that are sent to an OTLP address (http://collector:4318/v1/traces), in a thread."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            ConsoleSpanExporter,
            SimpleSpanProcessor,
        )
    except ImportError:
        raise _missing() from None
    provider = TracerProvider(resource=Resource({"service.name": "onward"}))
    if address == CONSOLE:
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stdout)))
    else:
        provider.add_span_processor(BatchSpanProcessor(_exporter(address)))
    return Telemetry(provider, clock)


def _exporter(address: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise PackageMissing(
            "traces are sent with opentelemetry-exporter-otlp-proto-http, which is not installed\n"
            "install it with: pip install 'onward[telemetry]', or set open_telemetry to 'console'"
        ) from None
    return OTLPSpanExporter(endpoint=address)


def _trace_module() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        raise _missing() from None
    return trace


def _propagator() -> Any:
    from opentelemetry.trace.propagation import tracecontext

    return tracecontext.TraceContextTextMapPropagator()


def _missing() -> PackageMissing:
    return PackageMissing(
        "traces are made with opentelemetry-sdk, which is not installed\n"
        "install it with: pip install 'onward[telemetry]', or leave open_telemetry out"
    )
