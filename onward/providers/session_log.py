"""What a session says: on the logger `onward`, as much as its own options ask for."""

from __future__ import annotations

import logging

from onward.providers.options import SessionOptions

_LOG = logging.getLogger("onward")
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 3: logging.ERROR, 4: logging.CRITICAL}


def log_of(options: SessionOptions) -> logging.Logger:
    """The session's log: `log_severity_level` holds for what it says, and for nobody else."""
    return _SessionLog(_LEVELS.get(options.log_severity_level, logging.WARNING))


class _SessionLog(logging.Logger):
    """Lets through what a level of its own allows; handlers and filters are those of `onward`."""

    def __init__(self, level: int) -> None:
        super().__init__(_LOG.name, level)

    def isEnabledFor(self, level: int) -> bool:
        return level >= self.level and level > self.manager.disable

    def handle(self, record: logging.LogRecord) -> None:
        _LOG.handle(record)
