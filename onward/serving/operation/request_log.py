"""Logs of a server: one line for each event and request, as text or as JSON.

2026-01-31T09:00:00.123Z INFO request id=a1 model=digits version=1 status=200 queue_ms=0.412 ...
{"time": "2026-01-31T09:00:00.123Z", "level": "INFO", "message": "request", "id": "a1", ...}
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from onward.serving.observer import NoObserver, RequestTimes
from onward.serving.operation.error_status import status_of

LOGGER = "onward.serving"
_MOST_ID = 128  # characters of a client's id
_MOST_TEXT = 300  # of an error
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


class RequestLog(NoObserver):
    """Logs a line for each request."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger(LOGGER)

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None:
        if self._log.isEnabledFor(logging.INFO):
            fields = request_fields(model, version, request_id, times, error)
            self._log.info("request", extra={"fields": fields})


def request_fields(
    model: str, version: str, request_id: str, times: RequestTimes, error: Exception | None
) -> dict[str, Any]:
    """What is logged of a request; what is not known is left out."""
    compute = times.join + times.run + times.split
    fields: dict[str, Any] = {
        "id": request_id[:_MOST_ID],
        "model": model,
        "version": version,
        "status": status_of(error),
        "queue_ms": round(times.queue * 1e3, 3),
        "compute_ms": round(compute * 1e3, 3),
        "batch": times.batch_size,
    }
    if error is not None:
        fields["error"] = str(error)[:_MOST_TEXT]
    return {name: value for name, value in fields.items() if value != ""}


class TextLogFormatter(logging.Formatter):
    """Time, level, message and fields as name=value, on one line: no sign of a client ends it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        message = _escaped(record.getMessage())
        lines = [f"{_time(record)} {record.levelname} {message}{pairs}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class JsonLogFormatter(logging.Formatter):
    """A JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {"time": _time(record), "level": record.levelname, "message": record.getMessage()}
        shown |= getattr(record, "fields", {})
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown)  # control characters and those beyond ASCII are escaped


def make_log_handler(
    log_format: Literal["text", "json", "none"], stream: TextIO
) -> logging.Handler:
    """The handler of the logger "onward.serving"."""
    if log_format == "none":
        return logging.NullHandler()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLogFormatter() if log_format == "json" else TextLogFormatter())
    return handler


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: Any) -> str:
    """A value without spaces as it is, any other as JSON text."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _escaped(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
