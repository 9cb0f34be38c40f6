"""The logging extension: read and change the level of the server's log while it runs.

Triton has a switch for each level; Python has one level, so that a switch takes the lower ones too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from onward.errors import NotSupported, RequestInvalid

LOGGER = logging.getLogger("onward.serving")
# Most severe last: the first that is on gives the level.
_SWITCHES = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
_OFF = logging.CRITICAL + 10


def log_settings() -> dict[str, Any]:
    """The settings in the JSON form of Triton's HTTP API."""
    level = LOGGER.getEffectiveLevel()
    return {
        "log_file": "",
        **{name: level <= switch for name, switch in _SWITCHES.items()},
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def update_log_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change settings; None leaves one as it is. The settings afterwards."""
    settings = log_settings()
    for name, value in changes.items():
        if name not in settings:
            raise RequestInvalid(f"unknown log setting '{name}': there are {', '.join(settings)}")
        if value is None:
            continue
        if name in ("log_file", "log_format"):
            if value != settings[name]:
                raise NotSupported(f"the log setting '{name}' cannot be changed on this server")
        elif type(value) not in ((bool,) if name in _SWITCHES else (int,)):
            raise RequestInvalid(f"the log setting '{name}' cannot be {value!r}")
        settings[name] = value
    LOGGER.setLevel(_level(settings))
    return log_settings()


def _level(settings: Mapping[str, Any]) -> int:
    if settings["log_verbose_level"]:
        return logging.DEBUG
    return next((level for name, level in _SWITCHES.items() if settings[name]), _OFF)
