"""plan_layouts: the layouts of a run, the best first, and what to do where none fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from onward.distributed.parallel import MIB, Parallel
from onward.distributed.planner.bucket_sizes import bucket_names
from onward.distributed.planner.layout_estimate import (
    Devices,
    DistributedEstimate,
    Estimator,
    Grouping,
)
from onward.distributed.planner.training_costs import TrainingCosts
from onward.errors import OptionError
from onward.formatting import show_bytes

# bytes of buckets that are tried: the default first, which wins where times are equal
BUCKETS = (4 * MIB, 1 * MIB, 25 * MIB, 100 * MIB)
_STAGES: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LayoutPlan:
    """The layouts of a run on some devices.

    Attributes:
        estimates: one for each layout, the best first; those that do not fit are last
        batch: rows of a step, of all processes together
        hints: what to do where nothing fits
    """

    estimates: tuple[DistributedEstimate, ...]
    batch: int
    devices: Devices
    hints: tuple[str, ...] = field(default=())

    @property
    def best(self) -> DistributedEstimate | None:
        """The fastest layout that fits."""
        first = self.estimates[0]
        return first if first.fits else None


def plan_layouts(
    costs: TrainingCosts,
    devices: Devices,
    batch: int,
    *,
    grouping: Grouping = bucket_names,
    progress: Callable[[str], None] = lambda step: None,
) -> LayoutPlan:
    """Estimate every layout for a batch of `batch` rows, each with the settings that suit it best.

    Of each layout: the largest micro-batch that fits, the bucket size that is fastest, and the
    optimizer's state on the CPU only where it does not fit otherwise.
    """
    choices = micro_batches(costs, devices, batch)
    estimator = Estimator(costs, devices, grouping)
    found = []
    for name, parallel in candidate_layouts(devices):
        progress(name)
        found.append(_suit(estimator, name, parallel, choices))
    ordered = tuple(sorted(found, key=lambda each: each.order))
    hints = () if ordered[0].fits else tuple(_hints(estimator, ordered[0], progress))
    return LayoutPlan(estimates=ordered, batch=batch, devices=devices, hints=hints)


def candidate_layouts(devices: Devices) -> Iterator[tuple[str, Parallel]]:
    """The layouts of some devices: name and settings."""
    if devices.count == 1:
        yield "one device", Parallel(data=1)
        return
    yield "data parallel", Parallel(data=devices.count)
    for zero in _STAGES:
        yield f"ZeRO {zero}", Parallel(data=1, shard=devices.count, zero=zero)
    if 1 < devices.per_node < devices.count:
        for zero in _STAGES:
            parallel = Parallel(data=devices.nodes, shard=devices.per_node, zero=zero)
            yield f"hybrid ZeRO {zero}", parallel


def micro_batches(costs: TrainingCosts, devices: Devices, batch: int) -> list[tuple[int, int]]:
    """(accumulate, rows of a micro-batch) that make a batch, the largest micro-batch first."""
    rows = rows_per_device(devices, batch)
    if costs.fixed is None:
        counts = [1 << i for i in range(rows.bit_length()) if 1 << i < rows] + [rows]
        return [(count, math.ceil(rows / count)) for count in dict.fromkeys(counts)]
    if batch % (devices.count * costs.fixed):
        step = devices.count * costs.fixed
        raise OptionError(
            f"the model has a fixed batch size of {costs.fixed}: on {devices.count} devices the "
            f"batch must be a multiple of {step} rows, not {batch}\n"
            f"choose {math.ceil(batch / step) * step}, or export the model with a dynamic batch"
        )
    return [(rows // costs.fixed, costs.fixed)]


def rows_per_device(devices: Devices, batch: int) -> int:
    """The rows of a batch that the first process has."""
    if batch < devices.count:
        raise OptionError(
            f"a batch of {batch} rows is too small for {devices.count} devices\n"
            f"choose a batch of {devices.count} rows or more, or fewer devices"
        )
    return math.ceil(batch / devices.count)


def _suit(
    estimator: Estimator, name: str, parallel: Parallel, choices: list[tuple[int, int]]
) -> DistributedEstimate:
    """A layout with the first settings that fit, and the bucket size that is then fastest."""
    limit, tried = estimator.devices.memory, []
    for offload in (False, True) if parallel.shard > 1 else (False,):
        for accumulate, rows in choices:
            fitting = []
            for bucket in BUCKETS:
                settings = replace(parallel, offload=offload, bucket=bucket)
                memory = estimator.memory(settings, accumulate, rows)
                tried.append((memory.total, settings, accumulate, rows))
                if memory.total <= limit:
                    fitting.append(estimator.estimate(name, settings, accumulate, rows))
            if fitting:
                return min(fitting, key=lambda each: each.step.seconds)
    _, settings, accumulate, rows = min(tried, key=lambda each: each[0])
    return estimator.estimate(name, settings, accumulate, rows)


def _hints(
    estimator: Estimator, nearest: DistributedEstimate, progress: Callable[[str], None]
) -> Iterator[str]:
    """What to do where nothing fits."""
    yield f"nothing fits: {nearest.name} needs {show_bytes(nearest.missing)} more on each device"
    progress("recomputation")
    recomputed = estimator.costs.recomputed_activations(nearest.rows)
    activations = nearest.memory.activations
    if recomputed < activations:
        enough = nearest.missing <= activations - recomputed
        yield (
            "recomputation of cheap values in the backward pass would take activations from "
            f"{show_bytes(activations)} to {show_bytes(recomputed)}"
            f"{', which fits' if enough else ''}"
        )
    progress("more devices")
    needed = _least_devices(estimator, nearest)
    if needed is None:
        yield (
            "more devices do not help, since activations and buckets alone take more: use shorter "
            "inputs, a smaller model, or 16 bits"
        )
    else:
        yield f"with ZeRO 3, {needed:,} such devices would be enough"


def _least_devices(estimator: Estimator, nearest: DistributedEstimate) -> int | None:
    """The least number of devices that hold the model with ZeRO 3, in powers of two."""
    count = estimator.devices.count
    settings = replace(nearest.parallel, data=1, zero=3, offload=False, bucket=min(BUCKETS))
    while count < _MOST_DEVICES:
        count *= 2
        memory = estimator.memory(replace(settings, shard=count), nearest.accumulate, nearest.rows)
        if memory.total <= estimator.devices.memory:
            return count
    return None
