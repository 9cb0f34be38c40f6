"""ServerSettings: when a parameter server updates, and which gradients it takes."""

from __future__ import annotations

from dataclasses import dataclass

from onward.settings import (
    above,
    check_fields,
    explain_frozen,
    explain_keywords,
    integer,
    optional,
    true_or_false,
)


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """When a parameter server updates, and which gradients it takes.

    Attributes:
        staleness: the most updates that may be made between the pull of a worker and its push;
            workers wait where one more could exceed it, so at most average * (staleness + 1) of
            them compute at the same time. 0: synchronous. None: asynchronous, no worker waits
        average: gradients that are averaged, by their weights, for one update
        scale_by_staleness: divide the learning rate of an update by 1 + staleness
        timeout: seconds after which a worker that was not heard of is dropped
        updates: the number of updates after which workers stop; None: they do not stop

    >>> ServerSettings(staleness=0, average=4)  # synchronous, four gradients for an update
    ServerSettings(staleness=0, average=4, ...)
    """

    staleness: int | None = None
    average: int = 1
    scale_by_staleness: bool = False
    timeout: float = 60.0
    updates: int | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            staleness=optional(integer(0)),
            average=integer(1),
            scale_by_staleness=true_or_false,
            timeout=above(0),
            updates=optional(integer(1)),
        )
