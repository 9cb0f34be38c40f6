"""The log settings that clients may read and change, in Triton's JSON form."""

from __future__ import annotations

import logging
from typing import Any

from onward.errors import RequestInvalid

_LOGGER = logging.getLogger("onward.serving")  # whose level the server sets
_FLAGS = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}


def read_log_settings() -> dict[str, Any]:
    """The settings, as far as the level of the server's logger says them."""
    level = _LOGGER.getEffectiveLevel()
    return {
        "log_file": "",
        **{flag: level <= least for flag, least in _FLAGS.items()},
        "log_verbose_level": 1 if level <= logging.DEBUG else 0,
        "log_format": "default",
    }


def update_log_settings(changes: dict[str, Any]) -> dict[str, Any]:
    """Change the level of the logger; return the settings afterwards."""
    settings = read_log_settings()
    for name, value in changes.items():
        if value is None:
            continue
        if name == "log_file":
            raise RequestInvalid("log file location can not be updated through network protocol")
        if name in _FLAGS and not isinstance(value, bool):
            raise RequestInvalid(f"Unable to parse '{name}': it is neither true nor false")
        if name == "log_verbose_level" and (type(value) is not int or value < 0):
            raise RequestInvalid("Unable to parse 'log_verbose_level': it is not 0 or more")
        if name == "log_format" and value != "default":
            raise RequestInvalid(f"invalid argument for log_format, got: {value}")
        if name not in settings:
            raise RequestInvalid(f"there is no log setting {name!r}: {', '.join(settings)}")
        settings[name] = value
    is_verbose = settings["log_verbose_level"] and "log_verbose_level" not in changes
    if is_verbose and any(changes.get(flag) is False for flag in _FLAGS):
        settings["log_verbose_level"] = 0  # the logger has one level: the newer request counts
    if settings != read_log_settings():
        _LOGGER.setLevel(_level_of(settings))
    return read_log_settings()


def _level_of(settings: dict[str, Any]) -> int:
    if settings["log_verbose_level"]:
        return logging.DEBUG
    return next((least for flag, least in _FLAGS.items() if settings[flag]), logging.CRITICAL)
