"""The log of a session: messages go to the logger `onward`, at the session's own level."""

from __future__ import annotations

import logging

from onward.providers.options import SessionOptions

_LOG = logging.getLogger("onward")
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 3: logging.ERROR, 4: logging.CRITICAL}


def log_of(options: SessionOptions) -> logging.Logger:
    """A logger at the session's `log_severity_level`, which other sessions do not share."""
    return _SessionLog(_LEVELS.get(options.log_severity_level, logging.WARNING))


class _SessionLog(logging.Logger):
    """A logger with its own level, and the handlers and filters of `onward`."""

    def __init__(self, level: int) -> None:
        super().__init__(_LOG.name, level)

    def isEnabledFor(self, level: int) -> bool:
        return level >= self.level and level > self.manager.disable

    def handle(self, record: logging.LogRecord) -> None:
        _LOG.handle(record)
