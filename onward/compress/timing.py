"""Time models in turns in this process, on one thread, by CPU time: load of others does not count.

times = time_in_turns({"float32": model, "int8": quantized}, feeds)
times["float32"] / times["int8"]    # how many times as fast
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

_WARM_UP = 2
_MIN_ROUNDS = 5
_LEAST_TURN, _LONGEST_TURN = 2e-3, 5e-2  # seconds of calls between two readings of the clock


def time_in_turns(
    models: Mapping[str, Source],
    feeds: Mapping[str, Any],
    *,
    providers: Asked | Mapping[str, Asked] = None,
    seconds: float = 1.0,
    threads: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """The median seconds of one run of each model; the models take turns.

    Args:
        models: the models by a name
        feeds: what all of them are fed
        providers: the providers that run them, or those of each model by its name
        seconds: how long to measure one model, on average
        threads: threads inside an operator. With one, the CPU time of this process is read;
            with more, the time that passes
        clock: another clock, for tests
    """
    read = clock or (time.process_time if threads == 1 else time.perf_counter)
    sessions = {
        name: InferenceSession(
            model,
            _options(threads),
            providers[name] if isinstance(providers, Mapping) else providers,
        )
        for name, model in models.items()
    }
    runs = {name: _runner(session, feeds) for name, session in sessions.items()}
    once = {name: _warm_up(run, read) for name, run in runs.items()}
    turn = min(max(_LEAST_TURN, *once.values()), _LONGEST_TURN)  # alike for all models
    repeats = {name: max(1, round(turn / each)) for name, each in once.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    used, rounds, order = 0.0, 0, list(models)
    while rounds < _MIN_ROUNDS or used < seconds * len(models):
        for name in order:
            start = read()
            for _ in range(repeats[name]):
                runs[name]()
            passed = read() - start
            times[name].append(passed / repeats[name])
            used += max(passed, 1e-4)
        rounds += 1
        order.reverse()  # none is always first
    return {name: float(np.median(each)) for name, each in times.items()}


def _options(threads: int) -> SessionOptions:
    return SessionOptions(
        intra_op_num_threads=threads, inter_op_num_threads=1, log_severity_level=4
    )


def _runner(session: InferenceSession, feeds: Mapping[str, Any]) -> Callable[[], object]:
    ready = dict(feeds)
    return lambda: session.run(None, ready)


def _warm_up(run: Callable[[], object], read: Callable[[], float]) -> float:
    """Run a few times; return the seconds of the last run."""
    for _ in range(_WARM_UP):
        run()
    start = read()
    run()
    return max(read() - start, 1e-6)
