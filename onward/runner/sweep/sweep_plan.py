"""The plan of a sweep: what is searched, from which settings, in how many trials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from onward.errors import OptionError
from onward.measure.machine import usable_cores
from onward.runner.config import TrainConfig, make_config
from onward.runner.sweep.search_space import (
    SearchSpace,
    ablation_points,
    grid_points,
    read_search,
    with_base_values,
)
from onward.runner.sweep.study_journal import PruneName
from onward.settings import choice, integer, seconds

_OBJECTS = ("model", "data", "validation")  # settings that may be in memory
_OWN = ("runs", "name")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that was checked."""

    space: SearchSpace
    settings: Mapping[str, Any]  # of every trial
    trials: int
    workers: int = 1
    timeout: float | None = None  # seconds after which no trial is started
    prune: PruneName = "median"
    points: Sequence[Mapping[str, Any]] = ()  # of a grid or of ablations: the trials themselves
    trial_settings: Mapping[str, Any] = field(default_factory=dict)  # that best.toml leaves out
    seed: int = 0


def plan_sweep(
    settings: Mapping[str, Any],
    search: Mapping[str, Any] | None,
    ablate: Mapping[str, Any] | None,
    grid: bool,
    trials: int,
    workers: int,
    timeout: float | None,
    prune: PruneName,
) -> SweepPlan:
    """Check what a user asks for: names, values, and what fits together."""
    given = {name: _path_text(value) for name, value in settings.items()}
    config = _check_settings(given, integer(1)("workers", workers))
    integer(1)("trials", trials)
    choice(*get_args(PruneName))("prune", prune)
    seconds("timeout", timeout)
    if bool(search) == bool(ablate):
        problem = "both search and ablate are given" if search else "there is nothing to search"
        raise OptionError(f"{problem}\ngive --search NAME=VALUES, or --ablate NAME=VALUES")
    space: SearchSpace = read_search(search or ablate or {})
    points: list[dict[str, Any]] = []
    if ablate:
        base = {name: getattr(config, name) for name in space}
        points = list(ablation_points(space, base))
        space = with_base_values(space, base)
    elif grid:
        points = list(grid_points(space))
    keeps_threads = workers == 1 or "threads" in given or "threads" in space
    return SweepPlan(
        space,
        given,
        len(points) or trials,
        workers,
        timeout,
        prune,
        points,
        {} if keeps_threads else {"threads": max(1, usable_cores() // workers)},
        config.seed,
    )


def _check_settings(given: Mapping[str, Any], workers: int) -> TrainConfig:
    in_memory = [name for name in _OBJECTS if name in given and not _is_plain(given[name])]
    config = make_config({name: v for name, v in given.items() if name not in in_memory})
    if in_memory and workers > 1:
        raise OptionError(
            f"{in_memory[0]} is in this process's memory, which workers cannot read\n"
            "give the path of a file, or workers=1"
        )
    for name in _OWN:
        if name in given:
            raise OptionError(f"{name} cannot be set in a sweep\ngive its folder with --folder")
    return config


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _is_plain(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, str) or texts
