"""Levels of the log through the logging extension."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from onward.errors import NotSupported, RequestInvalid
from onward.serving.log_settings import LOGGER, log_settings, update_log_settings


@pytest.fixture(autouse=True)
def info_level() -> Iterator[None]:
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield
    LOGGER.setLevel(before)


def test_the_settings_follow_the_level() -> None:
    assert log_settings() == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"log_verbose_level": 2}, logging.DEBUG),
        ({"log_info": False}, logging.WARNING),
        ({"log_info": False, "log_warning": False}, logging.ERROR),
        ({"log_info": False, "log_warning": False, "log_error": False}, logging.CRITICAL + 10),
        ({"log_info": None, "log_file": ""}, logging.INFO),
    ],
)
def test_a_change_sets_the_level(changes: dict[str, Any], level: int) -> None:
    found = update_log_settings(changes)
    assert LOGGER.level == level
    assert found == log_settings()


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(NotSupported, match="'log_file' cannot be changed"):
        update_log_settings({"log_file": "x.log"})
    with pytest.raises(RequestInvalid, match="unknown log setting 'colour'"):
        update_log_settings({"colour": True})
    with pytest.raises(RequestInvalid, match="'log_info' cannot be 1"):
        update_log_settings({"log_info": 1})
    assert LOGGER.level == logging.INFO
