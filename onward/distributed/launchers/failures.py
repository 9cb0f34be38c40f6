"""Which process of a run failed first, and why, in one line."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

FENCED = 77  # the exit code of a process whose run others train now: it must not start again
_INTERRUPTED = 130
# what a process prints that fails because another one has: gloo's words, and ours
_PEER_IS_GONE = (
    "another process of this run is gone",
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Timed out waiting",
)
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM, _INTERRUPTED)  # by the agent, after a failure


@dataclass(frozen=True)
class Failure:
    """A process that failed.

    Attributes:
        exit_code: as Python gives it: -9 for a process that SIGKILL ended
        last_lines: the end of its error output; empty where that is shown on the screen
    """

    rank: int
    size: int
    exit_code: int
    last_lines: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """Its exit code as a shell gives it: 137 for a process that SIGKILL ended."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code

    def __str__(self) -> str:
        who = f"process {self.rank} of {self.size}"
        if self.exit_code < 0:
            name = _signal_name(-self.exit_code)
            hint = ": was the machine out of memory?" if name == "SIGKILL" else ""
            return f"{who} was ended by {name}{hint}"
        why = next((line.strip() for line in reversed(self.last_lines) if line.strip()), "")
        return f"{who} ended with exit code {self.exit_code}" + (f": {why}" if why else "")


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others.

    When a process fails, the others lose their connections to it, and the agent stops them.

    >>> root_cause([Failure(0, 2, -15), Failure(1, 2, 3)]).rank
    1
    """
    return min(failures, key=lambda each: (_consequence(each), each.rank))


def _consequence(failure: Failure) -> int:
    """How likely it is that another process failed first: 0, 1 or 2."""
    if failure.exit_code in _STOPPED:
        return 2
    output = "\n".join(failure.last_lines)
    if any(words in output for words in _PEER_IS_GONE):
        return 2
    known = failure.exit_code < 0 or bool(output.strip())
    return 0 if known else 1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
