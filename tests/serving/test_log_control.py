"""log_control: Triton's log settings change the level of the logger."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import onward
from onward.errors import RequestInvalid
from onward.serving.log_control import read_log_settings, update_log_settings


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    logger = logging.getLogger("onward.serving")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, logging.INFO),
        ({"log_verbose_level": 1}, logging.DEBUG),
        ({"log_info": False}, logging.WARNING),
        ({"log_info": False, "log_warning": False}, logging.ERROR),
        ({"log_info": False, "log_warning": False, "log_error": False}, logging.CRITICAL),
        ({"log_info": None}, logging.INFO),
    ],
)
def test_settings_change_the_level(changes: dict[str, Any], expected: int) -> None:
    found = update_log_settings(changes)
    assert logging.getLogger("onward.serving").level == expected
    assert found == read_log_settings()
    assert found["log_info"] is (expected <= logging.INFO)


def test_a_message_class_that_is_turned_off_ends_verbose_messages() -> None:
    update_log_settings({"log_verbose_level": 1})
    found = update_log_settings({"log_info": False})
    assert (found["log_info"], found["log_verbose_level"]) == (False, 0)
    assert found == read_log_settings()


def test_a_servers_log_follows_the_settings() -> None:
    with onward.Server(lambda x: x, http_port=0, grpc_port=None, log_format="none"):
        assert read_log_settings()["log_info"] is True
        update_log_settings({"log_info": False})
        assert not logging.getLogger("onward.serving").isEnabledFor(logging.INFO)
        update_log_settings({"log_verbose_level": 1})
        assert logging.getLogger("onward.serving").isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(
    "changes",
    [{"log_file": "/tmp/a"}, {"log_info": 1}, {"log_verbose_level": -1}, {"log_format": "x"},
     {"log_verbose_level": True}, {"nothing": 1}],
)  # fmt: skip
def test_wrong_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid):
        update_log_settings(changes)
