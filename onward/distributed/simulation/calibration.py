"""Calibrate the simulation: fit the link and the compute to measured steps of a few processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket
from onward.distributed.simulation.cluster import Cluster, Link
from onward.distributed.simulation.simulated_step import StepTime, StepWork, simulate_step
from onward.errors import OptionError
from onward.settings import above, check_fields, integer, number

_LATENCIES = (1e-7, 1e-1)  # seconds, between which the fit searches
_BANDWIDTHS = (1e6, 1e13)  # bytes in a second
_SWEEPS = 6  # of a search, each over a smaller range
_POINTS = 9  # on each axis of a sweep


@dataclass(frozen=True, kw_only=True)
class StepMeasurement:
    """The measured time of a data-parallel step.

    Attributes:
        ranks: processes, each with the same work
        seconds: of a step
        buckets: bytes of each bucket, in the order of the backward pass
        forward: the share of the forward pass in the compute
    """

    ranks: int
    seconds: float
    buckets: tuple[int, ...]
    forward: float = 1 / 3

    def __post_init__(self) -> None:
        check_fields(self, ranks=integer(1), seconds=above(0.0), forward=number(0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class SimulationCalibration:
    """A link, and the compute of each pattern of buckets, that explain measured steps.

    Attributes:
        link: between any two processes
        compute: seconds of a step of one process, by its buckets
        forward: the share of the forward pass, by buckets
        cores: of the machine that was measured; None: each process has its own. More processes
            share them, and where all are busy, sending takes its time from computing
    """

    link: Link
    compute: dict[tuple[int, ...], float]
    forward: dict[tuple[int, ...], float]
    cores: int | None = None

    def work(self, buckets: tuple[int, ...]) -> StepWork:
        """The compute of a step, shared among buckets by their bytes."""
        if buckets not in self.compute:
            raise OptionError("these buckets were not measured with one process\nmeasure them")
        total, forward = sum(buckets), self.forward[buckets]
        seconds = [self.compute[buckets] * each / total for each in buckets]
        return StepWork(
            buckets=tuple(Bucket(names=(), nbytes=each, slots=0) for each in buckets),
            forward=tuple(forward * each for each in seconds),
            backward=tuple((1 - forward) * each for each in seconds),
        )

    def predict(self, buckets: tuple[int, ...], ranks: int) -> StepTime:
        """The step of `ranks` processes of the machine that was measured."""
        return _predict(self, buckets, ranks)


def calibrate(
    measurements: Sequence[StepMeasurement], *, cores: int | None = None
) -> SimulationCalibration:
    """Fit latency and bandwidth to steps of several processes, compute to steps of one.

    Each pattern of buckets needs a measurement of one process; the fit minimizes the squares of
    relative errors of all others.
    """
    alone = {each.buckets: each for each in measurements if each.ranks == 1}
    several = [each for each in measurements if each.ranks > 1]
    if not several or any(each.buckets not in alone for each in several):
        raise OptionError(
            "a calibration needs steps of one process and of several, with the same buckets\n"
            "measure 1, 2 and 4 processes"
        )

    def calibration(latency: float, bandwidth: float) -> SimulationCalibration:
        return SimulationCalibration(
            link=Link(latency=latency, bandwidth=bandwidth),
            compute={buckets: each.seconds for buckets, each in alone.items()},
            forward={buckets: each.forward for buckets, each in alone.items()},
            cores=cores,
        )

    def error(latency: float, bandwidth: float) -> float:
        tried = calibration(latency, bandwidth)
        return sum(
            math.log(tried.predict(each.buckets, each.ranks).seconds / each.seconds) ** 2
            for each in several
        )

    return calibration(*_search(error))


def _predict(fitted: SimulationCalibration, buckets: tuple[int, ...], ranks: int) -> StepTime:
    slower = 1.0 if fitted.cores is None else max(1.0, ranks / fitted.cores)
    link = Link(latency=fitted.link.latency * slower, bandwidth=fitted.link.bandwidth / slower)
    cluster = Cluster(inside=link, overlap=fitted.cores is None or ranks < fitted.cores)
    return simulate_step(fitted.work(buckets).scaled(slower), Parallel(data=ranks), cluster)


def _search(error: Callable[[float, float], float]) -> tuple[float, float]:
    """The point of the smallest error, on grids of logarithms that become finer around it."""
    ranges = [tuple(map(math.log, each)) for each in (_LATENCIES, _BANDWIDTHS)]
    best = (0.0, 0.0)
    for _ in range(_SWEEPS):
        axes = [
            [low + (high - low) * i / (_POINTS - 1) for i in range(_POINTS)] for low, high in ranges
        ]
        points = [(x, y) for x in axes[0] for y in axes[1]]
        best = min(points, key=lambda point: error(math.exp(point[0]), math.exp(point[1])))
        steps = [axis[1] - axis[0] for axis in axes]
        ranges = [(at - step, at + step) for at, step in zip(best, steps, strict=True)]
    return math.exp(best[0]), math.exp(best[1])
