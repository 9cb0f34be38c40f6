"""Open a training program on many processes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from onward.distributed.bucket_size import measure_bucket_size
from onward.distributed.exchange import DataParallel, as_tensor
from onward.distributed.executable import DistributedTraining
from onward.distributed.local_steps import LocalSteps
from onward.distributed.local_training import LocalTraining
from onward.distributed.logical_shards import LogicalShards
from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import ProcessGroups, join_groups
from onward.errors import DistributedError, OptionError
from onward.programs.buckets import split_updates
from onward.programs.build import build_program
from onward.programs.options import TrainingOptions
from onward.programs.program import Layout
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.providers.ort.training.lowered import is_saved_program
from onward.providers.provider import SegmentedTraining, Store
from onward.sessions.training.open_program import OpenedTraining, open_training, to_program
from onward.sessions.training.training_program import TrainingProgram


def distributed_options(options: Any, parallel: Parallel) -> TrainingOptions:
    """The options of a program for many processes: the loss's gradient takes a factor."""
    given = TrainingOptions.of(options)
    return replace(given, loss_scale=1.0) if given.loss_scale is None else given


def distributed_program(
    model: Any, loss: Any, optimizer: Any, options: Any, parallel: Parallel
) -> TrainingProgram:
    """Compile a model for many processes; a program that is compiled already is refused."""
    chosen = distributed_options(options, parallel)
    if not parallel.sync_batch_norm:
        return to_program(model, loss, optimizer, chosen)
    if is_saved_program(model) or isinstance(model, TrainingProgram):
        raise OptionError(
            "sync_batch_norm: a compiled program has the BatchNormalization of one process\n"
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
    if parallel.local_steps is not None:
        return open_local(program, options, providers, groups, parallel.local_steps)
    size = parallel.bucket
    if size == "auto":
        size = measure_bucket_size(groups.whole)
    buckets = split_updates(program.neutral, size)
    opened = open_training(TrainingProgram(buckets.program), options, providers)
    engine = opened.engine
    if not isinstance(engine, SegmentedTraining):
        raise OptionError(
            f"{opened.providers[0]} cannot train on many processes\n"
            "use CPUExecutionProvider or the torch providers"
        )
    engine.all_reduce = lambda vector: groups.whole.all_reduce(as_tensor(vector)).wait()
    layout, given = buckets.program.layout, groups.parallel
    check_same_program(groups, program.neutral.layout)
    copy_from_first(groups, layout, engine.store)
    logical = None
    if given.logical_shards is not None:
        logical = LogicalShards(engine, groups.whole, layout, given.logical_shards)
    exchange = DataParallel(engine.store, layout, groups.whole, given)
    training = DistributedTraining(
        engine, exchange, groups, program.neutral.layout, buckets.updates, logical
    )
    return OpenedTraining(training, opened.providers)


def open_local(
    program: TrainingProgram,
    options: SessionOptions,
    providers: Asked,
    groups: ProcessGroups,
    local_steps: LocalSteps,
) -> OpenedTraining:
    """Open a program whose processes train alone and average their weights."""
    opened = open_training(program, options, providers)
    check_same_program(groups, program.layout)
    copy_from_first(groups, program.layout, opened.engine.store)
    training = LocalTraining(opened.engine, local_steps, groups, program.layout)
    return OpenedTraining(training, opened.providers)


def check_same_program(groups: ProcessGroups, layout: Layout) -> None:
    """Refuse processes that would train different models."""
    settings = replace(layout.settings, seed=0)
    told = repr((layout.parameters, layout.updates, layout.state, settings))
    own = hashlib.sha256(told.encode()).hexdigest()
    for rank, other in enumerate(groups.whole.gather_objects(own)):
        if other != own:
            raise DistributedError(
                f"process {groups.whole.rank} and process {rank} train different models, or with "
                "different settings\ngive every process the same model, loss, optimizer and options"
            )


def copy_from_first(groups: ProcessGroups, layout: Layout, store: Store) -> None:
    """Begin with the parameters and statistics of process 0."""
    for name in layout.weights():
        tensor = torch.tensor(store.read(name))
        groups.whole.broadcast(tensor).wait()
        store.write(name, tensor.numpy())
