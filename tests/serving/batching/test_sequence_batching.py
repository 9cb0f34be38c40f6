"""sequence_batching: state per correlation ID, strictly in order, forgotten when silent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError, RequestInvalid
from onward.serving.batching.sequence_batching import SequenceBatching
from onward.serving.requests import SequencePart, TensorSpec
from onward.serving.settings import ModelSettings
from tests.serving.instances import FunctionInstance

INPUTS = [
    TensorSpec("x", "FP32", (-1, 2)),
    TensorSpec("h", "FP32", (-1, 3)),
    TensorSpec("start", "INT32", (-1, 1)),
    TensorSpec("end", "BOOL", (-1, 1)),
    TensorSpec("ready", "FP32", (-1, -1)),
    TensorSpec("id", "UINT64", (-1, 1)),
]
OUTPUTS = [TensorSpec("y", "FP32", (-1, 2)), TensorSpec("h_out", "FP32", (-1, 3))]
AXES = {spec.name: 0 for spec in INPUTS + OUTPUTS}
STATES = [{"input": "h", "output": "h_out", "initial": 0.5}]
CONTROLS = {"start": "start", "end": "end", "ready": "ready", "id": "correlation_id"}


@dataclass(eq=False)
class Job:
    part: SequencePart | None
    feeds: dict[str, Any] = field(default_factory=dict)
    deadline: float = math.inf


def job(name: int | str, *, start: bool = False, end: bool = False) -> Job:
    return Job(SequencePart(name, start, end))


def make(inputs: list[TensorSpec] = INPUTS, **values: Any) -> SequenceBatching[Job]:
    settings = {"sequence_states": STATES, "sequence_controls": CONTROLS, **values}
    instance = FunctionInstance(inputs, OUTPUTS, dict)
    return SequenceBatching("m", instance, ModelSettings.model_validate(settings), AXES)


def state(value: float, rows: int = 1) -> dict[str, Any]:
    return {"h": np.full((rows, 3), value, np.float32)}


def test_held_requests_expire_one_by_one() -> None:
    sequences = make()
    jobs = [job(7, start=True), job(7), job(7), job(8, start=True)]
    for each, deadline in zip(jobs, (1.0, 5.0, 3.0, 1.0)):
        each.deadline = deadline
        sequences.enter(each, 0.0)
    assert sequences.next_deadline == 3.0  # the others are not held
    assert sequences.take_expired(2.0) == []
    assert sequences.take_expired(3.0) == [jobs[2]]
    assert sequences.next_deadline == 5.0 and sequences.held_count == 1
    assert sequences.leave(jobs[0], state(1), 4.0) is jobs[1]
    assert sequences.next_deadline == math.inf


def test_a_sequence_starts_with_its_initial_state() -> None:
    sequences, first = make(), job(7, start=True)
    assert sequences.enter(first, 0.0)
    feeds = sequences.feeds(first, 2)
    assert feeds["h"].tolist() == [[0.5] * 3] * 2
    assert feeds["start"].tolist() == [[1], [1]]
    assert feeds["start"].dtype == np.int32
    assert feeds["end"].tolist() == [[False], [False]]
    assert feeds["ready"].tolist() == [[1], [1]]
    assert feeds["id"].tolist() == [[7], [7]]


def test_state_is_passed_on_to_the_next_request() -> None:
    sequences, first, second = make(), job(7, start=True), job(7, end=True)
    sequences.enter(first, 0.0)
    sequences.feeds(first, 1)
    assert sequences.leave(first, state(2.0), 0.1) is None
    assert sequences.enter(second, 0.2)
    feeds = sequences.feeds(second, 1)
    assert feeds["h"].tolist() == [[2.0] * 3]
    assert (feeds["start"].item(), feeds["end"].item()) == (0, True)
    sequences.leave(second, state(3.0), 0.3)
    assert len(sequences) == 0


def test_requests_of_one_sequence_wait_for_each_other() -> None:
    sequences = make()
    jobs = [job(7, start=True), job(7), job(7, end=True)]
    other = job(8, start=True)
    assert [sequences.enter(each, 0.0) for each in jobs] == [True, False, False]
    assert sequences.enter(other, 0.0)
    assert sequences.held_count == 2
    sequences.feeds(jobs[0], 1)
    assert sequences.leave(jobs[0], state(1.0), 0.0) is jobs[1]
    assert sequences.leave(jobs[1], state(1.0), 0.0) is jobs[2]
    assert sequences.held_count == 0
    assert sequences.leave(jobs[2], state(1.0), 0.0) is None
    assert len(sequences) == 1


def test_a_failed_request_keeps_the_state_before_it() -> None:
    sequences, first, second, third = make(), job("a", start=True), job("a"), job("a")
    sequences = make(sequence_controls={})
    sequences.enter(first, 0.0)
    sequences.feeds(first, 1)
    sequences.leave(first, state(2.0), 0.0)
    sequences.enter(second, 0.0)
    sequences.leave(second, None, 0.0)
    sequences.enter(third, 0.0)
    assert sequences.feeds(third, 1)["h"][0, 0] == 2.0


def test_a_failed_start_is_no_start() -> None:
    sequences, first, second = make(), job(7, start=True), job(7)
    sequences.enter(first, 0.0)
    sequences.enter(second, 0.0)
    sequences.feeds(first, 1)
    assert sequences.leave(first, None, 0.0) is second
    with pytest.raises(RequestInvalid, match="must specify the START flag"):
        sequences.feeds(second, 1)
    sequences.leave(second, None, 0.0)
    assert len(sequences) == 0


def test_a_request_must_name_its_sequence_and_start_it() -> None:
    sequences = make()
    message = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    for wrong in (Job(None), job(0, start=True), job("", start=True)):
        with pytest.raises(RequestInvalid, match=message):
            sequences.enter(wrong, 0.0)
    message = (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first "
        "request of the sequence"
    )
    with pytest.raises(RequestInvalid, match=message):
        sequences.enter(job(7), 0.0)
    assert len(sequences) == 0


def test_a_silent_sequence_is_forgotten() -> None:
    sequences, first, busy = make(sequence_idle_timeout=10), job(7, start=True), job(8, start=True)
    assert sequences.next_timeout == math.inf
    sequences.enter(first, 0.0)
    sequences.feeds(first, 1)
    sequences.leave(first, state(1.0), 1.0)
    sequences.enter(busy, 1.0)
    assert sequences.next_timeout == 11.0
    sequences.forget_idle(10.9)
    assert len(sequences) == 2
    sequences.forget_idle(11.0)
    assert len(sequences) == 1  # the busy one stays
    with pytest.raises(RequestInvalid, match="START flag"):
        sequences.enter(job(7), 12.0)


def test_a_held_request_can_be_dropped() -> None:
    sequences, first, second = make(), job(7, start=True), job(7)
    sequences.enter(first, 0.0)
    sequences.enter(second, 0.0)
    assert sequences.remove(second)
    assert not sequences.remove(first)
    assert not sequences.remove(job(9))
    sequences.feeds(first, 1)
    assert sequences.leave(first, state(1.0), 0.0) is None


def test_take_held_empties_all_sequences() -> None:
    sequences, first, second = make(), job(7, start=True), job(7)
    sequences.enter(first, 0.0)
    sequences.enter(second, 0.0)
    assert sequences.take_held() == [second]
    assert sequences.held_count == 0


def test_a_sequence_keeps_its_number_of_rows() -> None:
    sequences, first, second = make(), job(7, start=True), job(7)
    sequences.enter(first, 0.0)
    sequences.feeds(first, 2)
    sequences.leave(first, state(1.0, 2), 0.0)
    sequences.enter(second, 0.0)
    with pytest.raises(RequestInvalid, match="sequence 7 of model 'm' started with 2 rows"):
        sequences.feeds(second, 1)


def test_a_state_with_a_free_axis_starts_empty() -> None:
    inputs = [INPUTS[0], TensorSpec("h", "FP32", (-1, 4, -1, 8))]
    sequences, first = make(inputs, sequence_controls={}), job(7, start=True)
    sequences.enter(first, 0.0)
    assert sequences.feeds(first, 2)["h"].shape == (2, 4, 0, 8)


def test_a_state_s_named_axes_have_the_sizes_of_the_request() -> None:
    inputs = [
        TensorSpec("x", "FP32", (-1, 2), ("batch", "")),
        TensorSpec("h", "FP32", (1, -1, -1), ("", "batch", "past")),
    ]
    settings = ModelSettings.model_validate({"sequence_states": STATES})
    instance = FunctionInstance(inputs, OUTPUTS, dict)
    sequences: SequenceBatching[Job] = SequenceBatching("m", instance, settings, {})
    first = Job(SequencePart(7, True), {"x": np.zeros((3, 2))})
    sequences.enter(first, 0.0)
    assert sequences.feeds(first, 1)["h"].shape == (1, 3, 0)


@pytest.mark.parametrize(("datatype", "value"), [("BYTES", "a-1"), ("UINT64", None)])
def test_a_text_as_correlation_id_needs_a_text_input(datatype: str, value: str | None) -> None:
    inputs = [*INPUTS[:-1], TensorSpec("id", datatype, (-1, 1))]
    sequences, first = make(inputs), job("a-1", start=True)
    sequences.enter(first, 0.0)
    if value is None:
        with pytest.raises(RequestInvalid, match="the correlation ID 'a-1' is not UINT64"):
            sequences.feeds(first, 1)
    else:
        assert sequences.feeds(first, 1)["id"].tolist() == [[value]]


def test_settings_that_name_no_input_are_refused() -> None:
    with pytest.raises(OptionError, match="sequence settings of model 'm' name 'g'"):
        make(sequence_states=[{"input": "g", "output": "h_out"}])
    with pytest.raises(OptionError, match="sequence settings of model 'm' name 'g'"):
        make(sequence_controls={"g": "start"})
