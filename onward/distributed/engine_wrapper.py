"""EngineWrapper: what the training executables of a process in a group have in common."""

from __future__ import annotations

from onward.distributed.process_groups import ProcessGroups
from onward.programs.program import Layout
from onward.providers.provider import TrainingExecutable


class EngineWrapper:
    """The base class of TrainingExecutables that wrap an engine and communicate."""

    lookahead = 1  # other processes need the flags at once

    def __init__(self, engine: TrainingExecutable, groups: ProcessGroups, layout: Layout) -> None:
        self._engine, self._groups, self._layout = engine, groups, layout

    @property
    def finite(self) -> bool:
        return self._engine.finite

    @finite.setter
    def finite(self, finite: bool) -> None:
        self._engine.finite = finite

    @property
    def groups(self) -> ProcessGroups:
        """The groups that this process is in."""
        return self._groups

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent to others."""
        groups = (self._groups.whole, self._groups.shards, self._groups.copies)
        return sum(each.sent.total() for each in dict.fromkeys(groups))

    def gradient_norm(self) -> float:
        return self._engine.gradient_norm()
