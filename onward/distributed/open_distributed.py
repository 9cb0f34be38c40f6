"""Open a training program on many processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from onward.distributed.bucket_size import measure_bucket_size
from onward.distributed.distributed_training import DistributedTraining
from onward.distributed.engine_wrapper import EngineWrapper
from onward.distributed.exchange import DataParallel, Exchange, as_tensor
from onward.distributed.local_steps import LocalSteps
from onward.distributed.local_training import LocalTrainingExecutable
from onward.distributed.logical_shards import LogicalShards
from onward.distributed.one_graph import OneGraph
from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import ProcessGroups, join_groups
from onward.distributed.same_program import (
    check_same_engine,
    check_same_program,
    failing_together,
)
from onward.distributed.sharding.sharded_exchange import ShardedExchange
from onward.errors import OptionError
from onward.programs.bucket_parts import shard_buckets
from onward.programs.buckets import Buckets, program_of_process, split_updates
from onward.programs.build import build_program
from onward.programs.program import AVERAGE, Layout, slot_name
from onward.programs.training_options import TrainingOptions
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.providers.ort.training.lowered import is_saved_program
from onward.providers.provider import SegmentedTraining, ShardedTraining, Store
from onward.sessions.training.auto_engine import EngineOpener
from onward.sessions.training.open_program import OpenedTraining, open_training, to_program
from onward.sessions.training.training_program import TrainingProgram

log = logging.getLogger("onward")

_APPROXIMATE = (
    "Total: its losses count labels in different ways (ignore_index, weight, reduction); the parts "
    "of a batch are weighted by the first loss, so gradients are not exactly those of one process"
)

_HIDDEN_LABELS = (
    "the model computes the labels of its loss, and which of them count (ignore_index, weight) is "
    "not seen in the feeds; the parts of a batch are weighted by rows, so gradients are not "
    "exactly those of one process"
)


def distributed_options(options: Any) -> TrainingOptions:
    """The options of a program for many processes: the loss's gradient takes a factor."""
    given = TrainingOptions.of(options)
    return replace(given, loss_scale=1.0) if given.loss_scale is None else given


def distributed_program(
    model: Any, loss: Any, optimizer: Any, options: Any, parallel: Parallel, providers: Asked
) -> TrainingProgram:
    """Compile a model for many processes; a program that is compiled already is refused."""
    chosen = distributed_options(options)
    if not parallel.sync_batch_norm:
        return to_program(model, loss, optimizer, chosen, providers)
    if is_saved_program(model) or isinstance(model, TrainingProgram):
        raise OptionError(
            "sync_batch_norm cannot be added to a program that is compiled already\n"
            "give the session the model, its loss and its optimizer"
        )
    return TrainingProgram(build_program(model, loss, optimizer, chosen, shares_batch_norms=True))


def open_distributed(
    program: TrainingProgram, options: SessionOptions, providers: Asked, parallel: Parallel
) -> OpenedTraining:
    """Open a program on its engine, in this process of many."""
    if program.neutral is None:
        raise OptionError(
            "a saved program trains in one process: its graphs cannot be cut into segments\n"
            "give the session the model, its loss and its optimizer"
        )
    groups = join_groups(parallel)
    check_same_program(groups.whole, program.neutral)
    return open_in_groups(program, options, providers, groups)


def open_in_groups(
    program: TrainingProgram, options: SessionOptions, providers: Asked, groups: ProcessGroups
) -> OpenedTraining:
    """Open a program on its engine, in groups that this process is in."""
    assert program.neutral is not None
    parallel = groups.parallel
    weight = program.neutral.layout.weight
    if weight.is_approximate and groups.whole.rank == 0:
        log.warning(_HIDDEN_LABELS if weight.hides_labels else _APPROXIMATE)
    if parallel.local_steps is not None:
        return open_local(program, options, providers, groups, parallel.local_steps)
    size = measure_bucket_size(groups.whole) if parallel.bucket == "auto" else parallel.bucket
    buckets = split_updates(program.neutral, size)
    open_engine = _open_whole if groups.shards.size == 1 else _open_sharded
    with failing_together(groups.whole):
        engine, exchange, names = open_engine(buckets, options, providers, groups)
    check_same_engine(groups.whole, engine, names[0])
    engine.all_reduce = lambda vector: groups.whole.all_reduce(as_tensor(vector)).wait()
    copy_from_first(groups, program.neutral.layout, exchange.store)
    method = _choose_gradient_method(engine, exchange, groups, buckets)
    layout = program.neutral.layout
    training = DistributedTraining(engine, exchange, groups, layout, buckets.updates, method)
    return OpenedTraining(training, names)


def engine_opener(
    program: TrainingProgram,
    options: SessionOptions,
    opened: OpenedTraining,
    make_program: Callable[[], TrainingProgram],
) -> EngineOpener:
    """How the session of an `opened` engine opens another one, which all processes choose.

    `make_program` compiles the program that is measured: that of one process.
    """
    assert isinstance(opened.engine, EngineWrapper)
    groups = opened.engine.groups
    measured = make_program() if groups.parallel.sync_batch_norm else program
    return EngineOpener(
        measured,
        lambda providers: open_in_groups(program, options, providers, groups),
        groups.whole.gather_objects,
        groups.parallel.timeout / 2,  # one process may be ready at once, another one at the limit
        is_first=groups.whole.rank == 0,
    )


def _choose_gradient_method(
    engine: SegmentedTraining, exchange: Exchange, groups: ProcessGroups, buckets: Buckets
) -> LogicalShards | OneGraph | None:
    """How gradients are computed; None: in segments, and each bucket is reduced after its own."""
    parts, layout = groups.parallel.logical_shards, buckets.program.layout
    if parts is not None:
        assert isinstance(exchange, DataParallel)
        return LogicalShards(engine, exchange, groups.whole, layout, parts)
    if not isinstance(exchange, DataParallel) or _needs_segments(engine, groups, buckets):
        return None
    return OneGraph(engine, exchange, groups.whole, layout)


def _needs_segments(engine: SegmentedTraining, groups: ProcessGroups, buckets: Buckets) -> bool:
    """Whether the backward pass is cut at the buckets.

    Statistics are exchanged between segments. Without them, segments are to hide the communication:
    not where there is one bucket, nor between processes of one machine that compute on its
    processors, which also move the bytes.
    """
    if buckets.program.layout.state:
        return True
    if len(buckets.updates) == 1:
        return False
    on_gpu = any(as_tensor(each).is_cuda for each in engine.store.parameter_buffers())
    return any(groups.whole.gather_objects(on_gpu)) or not groups.whole.is_on_one_machine


Opened = tuple[SegmentedTraining, Exchange, list[str]]


def _open_whole(
    buckets: Buckets, options: SessionOptions, providers: Asked, groups: ProcessGroups
) -> Opened:
    """Every process holds all tensors."""
    opened = open_training(TrainingProgram(buckets.program), options, providers)
    engine = opened.engine
    if not isinstance(engine, SegmentedTraining):
        raise _not_supported(opened.providers, "train on many processes")
    exchange = DataParallel(engine, buckets.program.layout, groups.whole, groups.parallel)
    return engine, exchange, opened.providers


def _open_sharded(
    buckets: Buckets, options: SessionOptions, providers: Asked, groups: ProcessGroups
) -> Opened:
    """Every process holds a part of the tensors."""
    parallel, layout = groups.parallel, buckets.program.layout
    sharding = shard_buckets(
        layout,
        rank=groups.shards.rank,
        size=groups.shards.size,
        zero=parallel.zero,
        offload=parallel.offload,
    )
    program = TrainingProgram(program_of_process(buckets.program, sharding))
    opened = open_training(program, options, providers, sharding)
    engine = opened.engine
    if not isinstance(engine, ShardedTraining):
        raise _not_supported(opened.providers, "hold a part of the tensors")
    exchange = ShardedExchange(engine, layout, groups, sharding)
    return engine, exchange, opened.providers


def _not_supported(providers: Sequence[str], what: str) -> OptionError:
    return OptionError(
        f"{providers[0]} cannot {what}\nuse CPUExecutionProvider or the torch providers"
    )


def open_local(
    program: TrainingProgram,
    options: SessionOptions,
    providers: Asked,
    groups: ProcessGroups,
    local_steps: LocalSteps,
) -> OpenedTraining:
    """Open a program whose processes train separately and average their weights."""
    with failing_together(groups.whole):
        opened = open_training(program, options, providers)
    copy_from_first(groups, program.layout, opened.engine.store)
    training = LocalTrainingExecutable(opened.engine, local_steps, groups, program.layout)
    return OpenedTraining(training, opened.providers)


def copy_from_first(groups: ProcessGroups, layout: Layout, store: Store) -> None:
    """Begin with the parameters and statistics of process 0, one tensor at a time."""
    averaged = layout.names if layout.settings.averaged else ()
    for name, (dtype, _) in layout.weights().items():
        tensor = torch.from_numpy(np.array(layout.initial[name], dtype, order="C"))
        groups.whole.broadcast(tensor).wait()
        store.write(name, tensor.numpy())
        if name in averaged:
            store.write(slot_name(AVERAGE, name), tensor.numpy())
