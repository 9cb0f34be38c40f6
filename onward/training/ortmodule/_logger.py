"""LogLevel, and the logger of onward.training.ortmodule."""

from __future__ import annotations

import logging
from enum import IntEnum

LOGGER = logging.getLogger("onward.training.ortmodule")


class LogLevel(IntEnum):
    """How much ORTModule logs.

    >>> LogLevel.WARNING < LogLevel.ERROR
    True
    """

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


def set_log_level(level: LogLevel) -> None:
    """Let the logger write messages of this level and above."""
    LOGGER.setLevel((level + 1) * logging.DEBUG)  # logging's levels are 10, 20, ... 50
