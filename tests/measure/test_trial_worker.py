"""The child of a trial: on a GPU, results are compared in whole float32 and timed as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from onward.measure import trial_worker
from onward.measure.tuning.trials import Candidate
from onward.workers.request_loop import Request

X = np.ones(2, np.float32)


def first_run(candidate: Candidate) -> tuple[Callable[[], Any], list[Any], list[bool]]:
    """The call that is timed, the outputs, and if TF32 was on whenever a session was opened."""
    opened: list[bool] = []

    def opener(_: Mapping[str, Any]) -> Callable[..., Any]:
        is_on = torch.backends.cudnn.allow_tf32
        opened.append(is_on)
        return lambda names, feeds: [X * (2 if is_on else 1)]

    request = Request({"candidate": asdict(candidate), "feeds": []}, iter(()), None)
    call, _, buffers = trial_worker._first_run(opener, request)
    return call, buffers, opened


def test_a_gpu_is_compared_in_float32_and_timed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    call, [outputs], opened = first_run(Candidate("InductorExecutionProvider"))
    assert opened == [False, True]
    np.testing.assert_array_equal(np.frombuffer(outputs, np.float32), X)
    np.testing.assert_array_equal(call()[0], 2 * X)


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("CPUExecutionProvider"),
        Candidate("TorchExecutionProvider", 0, {"device": "cpu"}),
        Candidate(trial_worker.BARE),
    ],
    ids=str,
)
def test_a_cpu_is_opened_once(candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _, _, opened = first_run(candidate)
    assert len(opened) == 1
