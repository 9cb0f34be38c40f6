"""Logs: a line for each request, as text and as JSON, that no client can forge."""

from __future__ import annotations

import io
import json
import logging
from typing import Literal

import pytest

from onward.errors import ServerOverloaded
from onward.serving.observer import RequestTimes
from onward.serving.operation.request_log import RequestLog, make_log_handler

TIMES = RequestTimes(0.0015, 0.0001, 0.002, 0.0003, 4)
EVIL = 'a\nINFO forged\r\x1b[31m \x00\u2028"'


def logged(
    log_format: Literal["text", "json", "none"], *requests: tuple[str, Exception | None]
) -> str:
    stream = io.StringIO()
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(make_log_handler(log_format, stream))
    for request_id, error in requests:
        RequestLog(logger).on_request("digits", "1", request_id, TIMES, error)
    return stream.getvalue()


def test_json_line_has_every_field() -> None:
    found = json.loads(logged("json", ("a1", None)))
    moment = found.pop("time")
    assert moment.endswith("Z") and "T" in moment
    assert found == {
        "level": "INFO",
        "message": "request",
        "id": "a1",
        "model": "digits",
        "version": "1",
        "status": 200,
        "queue_ms": 1.5,
        "compute_ms": 2.4,
        "batch": 4,
    }


def test_text_line_has_every_field() -> None:
    line = logged("text", ("a1", None))
    assert line.endswith(
        " INFO request id=a1 model=digits version=1 status=200 "
        "queue_ms=1.5 compute_ms=2.4 batch=4\n"
    )


def test_request_without_an_id_has_none() -> None:
    assert " id=" not in logged("text", ("", None))
    assert "id" not in json.loads(logged("json", ("", None)))


def test_error_is_logged_with_its_status() -> None:
    found = json.loads(logged("json", ("a", ServerOverloaded("the queue is full\nwait"))))
    assert found["status"] == 503 and found["error"] == "the queue is full\nwait"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_id_makes_a_second_line(log_format: Literal["text", "json"]) -> None:
    text = logged(log_format, (EVIL, None), ("x" * 10_000, None))
    assert len(text.splitlines()) == 2
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert len(text) < 1000
    if log_format == "json":
        assert json.loads(text.splitlines()[0])["id"] == EVIL


def test_none_logs_nothing() -> None:
    assert logged("none", ("a", None)) == ""


def test_traceback_is_kept() -> None:
    stream = io.StringIO()
    logger = logging.Logger("test")
    for log_format in ("text", "json"):
        logger.handlers = [make_log_handler(log_format, stream)]  # type: ignore[arg-type]
        try:
            raise ValueError("inside")
        except ValueError:
            logger.exception("failed\nbadly")
    text, as_json = stream.getvalue().rsplit("\n{", 1)
    assert "ERROR failed\\nbadly\nTraceback" in text and "ValueError: inside" in text
    assert "ValueError: inside" in json.loads("{" + as_json)["traceback"]
