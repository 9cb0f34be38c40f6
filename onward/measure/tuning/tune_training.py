"""Tune training: measure which engine makes the steps of a program fastest, and cache the result.

Every engine opens a copy of the program in a separate process and makes the same few steps from the
same state on the user's batch; the ones that train alike (training_agreement.py) are timed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import OptionError, ProviderError
from onward.lazy import LazyModule
from onward.measure.machine import digest, machine, versions
from onward.measure.tuning.common_results import Gather, alone, run_together
from onward.measure.tuning.race import Progress, race
from onward.measure.tuning.training_agreement import TOLERANCES, StepResults, check_agreement
from onward.measure.tuning.trials import Candidate, Trial
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import CPU, TuningResult, keep_result, read_result
from onward.providers.choose import INDUCTOR, TORCH, available
from onward.workers.worker import Worker

if TYPE_CHECKING:
    from onward.programs import program_files
    from onward.programs.program import Program
else:  # it loads onnx
    program_files = LazyModule("onward.programs.program_files")

WORKER = "onward.measure.training_trial_worker"
_GPU_LIBRARIES = ("*torch_cuda*", "*torch_hip*")
_TOO_SLOW = 20.0  # eager torch draws random numbers in some twenty passes, Inductor in one
_START_LIMIT = 120.0  # seconds that torch may take to say which devices it has


def training_engines(options: TuningOptions) -> list[str]:
    """The providers of this machine that hold the state of training themselves."""
    known = (CPU, TORCH, INDUCTOR)
    here = [name for name in available() if name in known]
    asked = options.providers
    if asked is None:
        return here
    others = [name for name in asked if name not in known]
    if others or not asked:
        raise OptionError(
            f"auto measures training on {', '.join(here)}, not on {', '.join(others) or 'nothing'}"
            "\nname one of these, or leave `providers` out"
        )
    return [name for name in here if name in asked]


def training_candidates(options: TuningOptions, devices: Sequence[str]) -> list[Candidate]:
    """The engines on each device of torch's; what compiles for long comes last."""
    engines, threads = training_engines(options), options.threads
    found = [Candidate(CPU, threads)] if CPU in engines else []
    for engine in (TORCH, INDUCTOR):
        if engine in engines:
            found += [Candidate(engine, threads, {"device": device}) for device in devices]
    if INDUCTOR in engines and "cuda" in devices:
        graphs = {"device": "cuda", "mode": "reduce-overhead"}
        found.append(Candidate(INDUCTOR, threads, graphs))
    return found


def tune_training(
    program: Program,
    feeds: Mapping[str, Any],
    write_state: Callable[[Path], None],
    options: TuningOptions,
    *,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = lambda *_: None,
    gather: Gather = alone,
) -> TuningResult:
    """The result for a program on feeds of these shapes: from the cache, or measured and cached.

    `write_state` writes the checkpoint that the trials start from. Several processes that train
    together have one result, that of the slowest: `gather` gives the values of all of them.
    """
    key = _cache_key(program, feeds, options, dict(settings or {}))
    keys = gather(key)
    place = options.cache_folder / f"{key if len(keys) == 1 else digest(*keys)}.json"
    found = gather(None if options.fresh else read_result(place))[0]
    if found is not None:
        return found  # type: ignore[no-any-return]
    layout, tolerance = program.layout, TOLERANCES[options.precision]

    def check(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
        names, state = layout.names, list(layout.state)
        found, expected = (StepResults.from_list(each, names, state) for each in (ours, theirs))
        check_agreement(found, expected, tolerance)

    with tempfile.TemporaryDirectory(prefix="onward-") as name:
        folder, state = Path(name) / "program", Path(name) / "state.safetensors"

        def write_files() -> None:
            program_files.write_program(program, folder)
            write_state(state)

        run_together(write_files, gather)
        rows = race(
            _common_candidates(options, gather),
            lambda candidate: Trial(
                folder, candidate, feeds, weights=state, settings=settings, module=WORKER
            ),
            check,
            options,
            progress,
            too_slow=_TOO_SLOW,
            gather=gather,
        )
    return keep_result(rows, {name: list(np.shape(f)) for name, f in feeds.items()}, place)


def _common_candidates(options: TuningOptions, gather: Gather) -> list[Candidate]:
    """The candidates of this machine that all processes have."""
    own = training_candidates(options, torch_devices(training_engines(options)))
    listed = gather(own)
    found = [each for each in listed[0] if all(each in others for others in listed)]
    if not found:
        raise ProviderError("the processes have no engine in common")
    return found


def torch_devices(engines: Sequence[str]) -> list[str]:
    """The devices of torch here, the fastest first; torch is not loaded in this process."""
    if TORCH not in engines and INDUCTOR not in engines:
        return []
    spec = importlib.util.find_spec("torch")
    folders = [Path(each) / "lib" for each in (spec and spec.submodule_search_locations) or ()]
    if not any(any(folder.glob(name)) for folder in folders for name in _GPU_LIBRARIES):
        return ["cpu"]
    try:
        with Worker(WORKER, "torch") as worker:
            reply, _ = worker.ask({"do": "devices"}, doing="loaded", timeout=_START_LIMIT)
    except ProviderError:  # the trial on the CPU will give the reason
        return ["cpu"]
    return list(reply["devices"])


def _cache_key(
    program: Program, feeds: Mapping[str, Any], options: TuningOptions, settings: dict[str, Any]
) -> str:
    """What a result is cached under. Weights are no part of it: they do not change the speed."""
    graphs, layout = program_files.step_description(program)
    step = [hashlib.sha256(graph).hexdigest() for graph in graphs]
    kinds = {n: [str(np.asarray(f).dtype), list(np.shape(f))] for n, f in sorted(feeds.items())}
    asked = [options.precision, options.threads, training_engines(options), settings]
    return digest("training", step, layout, kinds, machine(), versions(), asked)
