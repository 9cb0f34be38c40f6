"""The child process of a training trial: makes a few steps to compare, and times others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.lazy import LazyModule
from onward.measure.trial_worker import Reply, serve_trial
from onward.measure.tuning.training_agreement import StepResults
from onward.measure.tuning.trials import Candidate
from onward.programs.program import LOSS, Array
from onward.programs.program_files import read_program
from onward.providers.options import SessionOptions
from onward.providers.ort.training.lowering import lower_program
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram
from onward.workers.request_loop import Request

if TYPE_CHECKING:
    from onward.providers.torch import provider as torch_provider
else:  # torch is loaded when it is asked for
    torch_provider = LazyModule("onward.providers.torch.provider")

_UPDATES = 3  # that are compared


def open_step(request: Mapping[str, Any]) -> Callable[..., Any]:
    """A function whose first call gives what is compared; each later one is one update."""
    candidate = Candidate(**request["candidate"])
    options = SessionOptions(**{**request["settings"], "disable_fallback": True})
    options = replace(options, log_severity_level=4, intra_op_num_threads=candidate.threads)
    program = TrainingProgram(read_program(Path(request["model"])))

    def open_session(program: TrainingProgram) -> TrainingSession:
        named = (candidate.provider, candidate.provider_options)
        session = TrainingSession(program, sess_options=options, providers=[named])
        session.load(request["weights"])
        return session

    timed = open_session(program)
    compared: TrainingSession | None = timed
    assert program.neutral is not None
    if program.neutral.draws is not None and candidate.provider == "CPUExecutionProvider":
        # its own steps are fed other random numbers than torch draws
        drawing = lower_program(program.neutral, draws_in_graph=True)
        compared = open_session(TrainingProgram(drawing))

    def run(_: Any, feeds: Mapping[str, Any]) -> list[Array]:
        nonlocal compared
        if compared is None:
            return [_update(timed, feeds)]
        results = compare_steps(compared, feeds)
        compared = None
        timed.set_learning_rate(0.0)  # many steps on one batch must not lead anywhere
        return results.to_list()

    return run


def compare_steps(session: TrainingSession, feeds: Mapping[str, Any]) -> StepResults:
    """Make a few updates with the same feeds."""
    before = {name: array.copy() for name, array in session.parameters.items()}
    gradients: dict[str, Array] = {}
    remove = session.add_gradient_hook(lambda _: gradients.update(session.get_gradients()))
    losses = [_update(session, feeds)]
    remove()
    statistics = {name: array.copy() for name, array in session.statistics.items()}
    losses += [_update(session, feeds) for _ in range(1, _UPDATES)]
    changes = {name: session.parameters[name] - before[name] for name in before}
    return StepResults(np.array(losses), gradients, changes, statistics)


def _update(session: TrainingSession, feeds: Mapping[str, Any]) -> Array:
    """As many micro-batches as one update takes; the last one's loss, which waits for a GPU."""
    for _ in range(session.program.settings.accumulate):
        results = session.step(feeds)
    return np.asarray(results[LOSS])


def _devices(_: Request) -> Reply:
    return {"devices": torch_provider.devices()}, []


if __name__ == "__main__":
    serve_trial(open_step, devices=_devices)
