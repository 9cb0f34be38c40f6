"""A session's log: its own level, the handlers of `onward`."""

from __future__ import annotations

import logging

import pytest

from onward.providers.options import SessionOptions
from onward.providers.session_log import log_of

WORDS = ["debug", "info", "warning", "error", "critical"]


@pytest.mark.parametrize("severity", range(5))
def test_log_severity_level_filters_messages(
    severity: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(SessionOptions(log_severity_level=severity))
    for word in WORDS:
        getattr(log, word)("%s", word)
    assert caplog.messages == WORDS[severity:]
    assert {(record.name, record.funcName) for record in caplog.records} == {
        ("onward", test_log_severity_level_filters_messages.__name__)
    }


def test_two_logs_have_separate_levels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = logging.getLogger("onward").level
    loud = log_of(SessionOptions(log_severity_level=1))
    quiet = log_of(SessionOptions(log_severity_level=4))
    loud.info("heard")
    quiet.error("not heard")
    assert caplog.messages == ["heard"]
    assert logging.getLogger("onward").level == before


def test_logging_disable_is_respected(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(SessionOptions(log_severity_level=0))
    log.info("heard")
    logging.disable(logging.WARNING)
    try:
        log.warning("not heard")
        log.error("heard too")
    finally:
        logging.disable(logging.NOTSET)
    refuse = lambda record: False  # noqa: E731
    logging.getLogger("onward").addFilter(refuse)
    try:
        log.error("not heard either")
    finally:
        logging.getLogger("onward").removeFilter(refuse)
    assert caplog.messages == ["heard", "heard too"]
