"""The efficiency of a run on more and more processes, each with the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onward.distributed.parallel import Parallel
from onward.distributed.simulation.cluster import Cluster
from onward.distributed.simulation.simulated_step import StepWork, simulate_step

RANKS = tuple(1 << i for i in range(11))  # 1 to 1,024


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """A number of processes, the time of a step, and how well they are used."""

    ranks: int
    seconds: float
    efficiency: float  # the time of one process, divided by the time of this step
    hidden: float  # the share of communication during which processes compute


def scaling_curve(
    work: StepWork,
    layout: Callable[[int], Parallel],
    cluster: Cluster,
    *,
    ranks: Iterable[int] = RANKS,
    spread: float = 0.0,
    seed: int = 0,
) -> list[ScalingPoint]:
    """Simulate a step for each number of processes; `layout(n)` is the Parallel of n."""
    points = []
    for size in ranks:
        parallel = layout(size).over(size)
        step = simulate_step(work, parallel, cluster, spread=spread, seed=seed)
        points.append(
            ScalingPoint(
                ranks=size, seconds=step.seconds, efficiency=step.efficiency, hidden=step.hidden
            )
        )
    return points
