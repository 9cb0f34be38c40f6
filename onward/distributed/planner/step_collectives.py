"""The collectives of one training step, in their order, and the bytes that each process sends.

shard 1         all_reduce of gradients, over the copies
ZeRO 1          reduce_scatter of gradients, all_gather of updated parameters
ZeRO 2          the same; gradients are scattered after each micro-batch
ZeRO 3          all_gather of parameters in forward and backward, reduce_scatter of gradients
several copies  in addition, all_reduce of the shard of gradients over the copies
always          all_reduce of a few numbers, over all processes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket, Names, measure_buckets
from onward.distributed.ring_bytes import Kind, ring_bytes
from onward.distributed.sharding.gather_plan import Reads, count_gathers
from onward.errors import OptionError
from onward.programs.program import Layout

Group = Literal["whole", "shards", "copies"]  # as in ProcessGroups
Phase = Literal["begin", "forward", "backward", "reduce", "end", "norm", "update"]

_FLOAT64 = 8
BATCH_WEIGHT = (
    2 * _FLOAT64
)  # of each micro-batch: the weight of this process's part, and if it has rows
BATCH_RESULT = 2 * _FLOAT64  # of each micro-batch: its loss, and whether it is not finite
SHARD_NORM = 2 * _FLOAT64  # of each update of shards: the squares of gradients, and not finite ones


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective of a step, and the phase that it belongs to.

    "forward" and "backward" collectives come before the segment of their bucket, "reduce" after its
    backward segment; "begin" and "end" are those of a micro-batch; "norm" comes before the update,
    "update" after it.
    """

    kind: Kind
    group: Group
    nbytes: int  # of the whole vector
    phase: Phase
    bucket: int = -1  # -1: of no bucket
    micro_batch: int = 0

    def sent(self, size: int) -> int:
        """The bytes that a process of a group of `size` sends, as Communicator counts them."""
        return ring_bytes(self.kind, self.nbytes, size)


def group_size(parallel: Parallel, group: Group) -> int:
    """The number of processes in a group; `parallel.data` must be a number."""
    if parallel.data is None:
        raise OptionError(
            "Parallel.data, the number of copies of the model, is not set\n"
            "set it, such as data=4, or give the number of processes: parallel.over(8)"
        )
    sizes = {"whole": parallel.data * parallel.shard, "shards": parallel.shard}
    return sizes.get(group, parallel.data)


def traffic(
    layout: Layout,
    parallel: Parallel,
    *,
    buckets: Sequence[Names] | None = None,
    accumulate: int | None = None,
    plan: Reads | None = None,
) -> Counter[str]:
    """The bytes that each process sends in a step, by collective, as Communicator counts them.

    `buckets` are names of parameters that are reduced together; None: each update of the layout, as
    `split_updates` cut it. `accumulate` is the number of micro-batches; None: the program's.
    `plan` has the buckets that are held while each segment runs with ZeRO 3, as an engine plans
    it; None: as for a chain of layers.
    """
    if parallel.compression is not None or parallel.local_steps is not None:
        raise OptionError(
            "the traffic of compressed gradients and of local steps depends on their settings\n"
            "plan without them, and read Communicator.sent in a run with them"
        )
    micro_batches = layout.settings.accumulate if accumulate is None else accumulate
    collectives = step_collectives(
        measure_buckets(layout, buckets), parallel, micro_batches, statistics_bytes(layout)
    )
    if plan is None or parallel.zero < 3:
        return count_sent(collectives, parallel)
    others = [each for each in collectives if each.kind != "all_gather"]
    gathered = {each.bucket: each for each in collectives if each.kind == "all_gather"}
    times = count_gathers([*plan] * micro_batches)
    again = [gathered[bucket] for bucket in times.elements()]
    return count_sent([*others, *again], parallel)


def statistics_bytes(layout: Layout) -> list[int]:
    """The bytes of each running statistic."""
    return [layout.initial[name].nbytes for name in layout.state]


def count_sent(collectives: Sequence[Collective], parallel: Parallel) -> Counter[str]:
    """The bytes that each process sends, by collective."""
    sent: Counter[str] = Counter()
    for each in collectives:
        sent[each.kind] += each.sent(group_size(parallel, each.group))
    return +sent


def step_collectives(
    buckets: Sequence[Bucket],
    parallel: Parallel,
    accumulate: int = 1,
    statistics: Sequence[int] = (),
) -> list[Collective]:
    """The collectives of one step; those of a group of one process are left out.

    `statistics` are the bytes of each running statistic.
    """
    listed: list[Collective] = []
    for micro_batch in range(accumulate):
        is_last = micro_batch == accumulate - 1
        listed.append(_numbers(BATCH_WEIGHT, "begin", micro_batch))
        listed += _bucket_collectives(buckets, parallel, micro_batch, is_last)
        listed += [_numbers(each, "end", micro_batch) for each in (BATCH_RESULT, *statistics)]
    if parallel.shard > 1:
        listed.append(_numbers(SHARD_NORM, "norm", accumulate - 1))
    listed += _gather_updated(buckets, parallel)
    return [each for each in listed if group_size(parallel, each.group) > 1]


def _numbers(nbytes: int, phase: Phase, micro_batch: int) -> Collective:
    return Collective(
        kind="all_reduce", group="whole", nbytes=nbytes, phase=phase, micro_batch=micro_batch
    )


def _bucket_collectives(
    buckets: Sequence[Bucket], parallel: Parallel, micro_batch: int, is_last: bool
) -> Iterator[Collective]:
    """The collectives of the buckets in one micro-batch."""
    n, zero = parallel.shard, parallel.zero if parallel.shard > 1 else 0
    order = range(len(buckets))
    for i in reversed(order) if zero == 3 else ():
        if micro_batch == 0 or i < len(buckets) - 1:  # else held since the last backward segment
            yield _gather(buckets[i], n, "forward", i, micro_batch)
    for i in order:
        if zero == 3 and i > 1:  # the first two are held since the forward pass
            yield _gather(buckets[i], n, "backward", i, micro_batch)
        if zero >= 2 or (zero == 1 and is_last):
            yield Collective(
                kind="reduce_scatter",
                group="shards",
                nbytes=buckets[i].padded(n),
                phase="reduce",
                bucket=i,
                micro_batch=micro_batch,
            )
        if is_last:  # of the shard, which is the whole vector where there is one shard
            yield Collective(
                kind="all_reduce",
                group="copies",
                nbytes=buckets[i].shard(n),
                phase="reduce",
                bucket=i,
                micro_batch=micro_batch,
            )


def _gather_updated(buckets: Sequence[Bucket], parallel: Parallel) -> Iterator[Collective]:
    if parallel.shard > 1 and parallel.zero < 3:
        for i, bucket in enumerate(buckets):
            yield _gather(bucket, parallel.shard, "update", i, 0)


def _gather(bucket: Bucket, n: int, phase: Phase, i: int, micro_batch: int) -> Collective:
    return Collective(
        kind="all_gather",
        group="shards",
        nbytes=bucket.padded(n),
        phase=phase,
        bucket=i,
        micro_batch=micro_batch,
    )
