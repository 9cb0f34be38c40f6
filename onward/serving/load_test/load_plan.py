"""The plan of a load test, and its shares for several client processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from onward.errors import OptionError

Arrivals = Literal["poisson", "constant"]


@dataclass(frozen=True)
class LoadPlan:
    """How a server is loaded.

    Closed loop (`rate` is None): each connection sends its next request after an answer.
    Open loop: requests start at their own times, however slow the server is.
    """

    url: str  # http://, https:// or grpc://
    seconds: float = 10.0
    warm_up: float = 0.5  # seconds before them that are not counted
    connections: int = 32  # open loop: at most
    rate: float | None = None  # requests per second
    arrivals: Arrivals = "poisson"
    timeout: float = 30.0  # of one request
    seed: int = 0
    offset: float = 0.0  # of the first arrival in an open loop, in seconds

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise OptionError(f"a load test needs a connection, not {self.connections}")
        if self.rate is not None and not 0 < self.rate < 1e7:
            raise OptionError(f"a rate is a number of requests per second, not {self.rate:g}")
        if not 0 < self.seconds < 1e6 or self.warm_up < 0 or self.timeout <= 0:
            raise OptionError("the seconds of a load test are more than 0")

    @property
    def total_seconds(self) -> float:
        return self.warm_up + self.seconds


def split_plan(plan: LoadPlan, processes: int) -> list[LoadPlan]:
    """The plans of several processes, which together load the server as `plan` does."""
    count = min(processes, plan.connections)
    shares = []
    for number in range(count):
        connections = plan.connections // count + (number < plan.connections % count)
        share = replace(plan, connections=connections, seed=plan.seed + number)
        if plan.rate is not None:
            share = replace(share, rate=plan.rate / count, offset=number / plan.rate)
        shares.append(share)
    return shares
