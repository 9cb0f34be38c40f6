"""dispatcher: full queues, deadlines, priorities, cancellation, delays and sequences."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import onward
from onward.errors import (
    ModelUnavailable,
    RequestExpired,
    RequestInvalid,
    ServerOverloaded,
)
from onward.serving.batching.served_model import ServedModel
from onward.serving.requests import InferRequest, InferResponse, SequencePart
from onward.serving.requests import TensorSpec as Spec
from tests.serving.instances import FunctionInstance, GatedInstance, SessionInstance, doubler
from tests.serving.served_in_loop import (
    GUARD,
    Answer,
    Clock,
    Log,
    first,
    gated,
    gather,
    in_loop,
    infer,
    request,
    served,
    submit,
)


@in_loop
async def test_a_full_queue_refuses_requests_with_a_time_to_retry() -> None:
    async with gated(max_queue_size=10) as (model, gate, blocker):
        answers = [submit(model, request()) for _ in range(8)]
        assert not model.is_nearly_full
        answers += [submit(model, request()) for _ in range(2)]
        assert model.is_nearly_full
        refused = await infer(model, request())
        assert isinstance(refused, ServerOverloaded)
        assert str(refused) == "Exceeds maximum queue size: 10 requests wait for model 'm'"
        assert refused.retry_after is not None
        assert 0.1 <= refused.retry_after <= 60
        gate.gate.set()
        assert all(isinstance(each, InferResponse) for each in await gather(blocker, *answers))


@in_loop
async def test_an_expired_request_does_not_run() -> None:
    clock = Clock()
    async with gated(clock=clock, timeout=5.0) as (model, gate, blocker):
        short = submit(model, request(1.0, timeout=1.0))
        longer = submit(model, request(2.0, timeout=100.0))  # the model's own is 5
        clock.now = 4.0
        gate.gate.set()
        found = await gather(blocker, short, longer)
        assert isinstance(found[1], RequestExpired)
        assert str(found[1]) == "Request timeout expired: it waited 4.000 s for model 'm'"
        assert first(found[2]) == 4.0
        assert len(gate.instance.ran) == 2


@in_loop
async def test_an_expired_request_is_answered_while_the_instance_is_busy() -> None:
    async with gated() as (model, _, blocker):
        answer = await infer(model, request(timeout=0.001))
        assert isinstance(answer, RequestExpired)
        assert not blocker.done()


@in_loop
async def test_a_request_that_runs_is_answered_at_its_deadline() -> None:
    log = Log()
    asked = request(3.0, timeout=0.1, id="late")
    async with gated(blocker=asked, observer=log) as (model, gate, blocker):
        answer = await asyncio.wait_for(blocker, GUARD)
        assert isinstance(answer, RequestExpired)
        assert "Request timeout expired: model 'm' still runs it after 0." in str(answer)
        assert (model.in_flight, model.is_stuck) == (0, False)
        while not gate.interrupts:  # nobody waits for the run, which may not have started yet
            await asyncio.sleep(0)
        await asyncio.wait_for(model.drain(GUARD), GUARD)  # it is answered: nothing to wait for
        gate.gate.set()
        await closed(model)
        statistics = model.statistics()
    assert (statistics["inference_count"], statistics["inference_stats"]["fail"]["count"]) == (0, 1)
    assert [(each[0], each[2]) for each in log.requests] == [("late", answer)]
    assert log.batches == [(1, 1)]


@in_loop
async def test_a_run_is_ended_when_all_of_its_clients_are_gone() -> None:
    instance = GatedInstance(doubler())
    async with served(instance) as model:
        instance.gate.clear()
        cancels = [model.submit(request(value), lambda _: None) for value in (1.0, 2.0)]
        while not instance.is_running.is_set():
            await asyncio.sleep(0)
        for left in (1, 0):
            assert instance.interrupts == 0
            cancels.pop()()
            assert model.in_flight == left
            await asyncio.sleep(0)
        while not instance.interrupts:
            await asyncio.sleep(0)
        instance.gate.set()
        assert first(await infer(model, request(5.0))) == 10.0
        statistics = model.statistics()
    assert statistics["inference_stats"]["success"]["count"] == 1


@in_loop
async def test_a_late_answer_does_not_harm_the_other_requests_of_its_batch() -> None:
    instance = GatedInstance(doubler())
    async with served(instance) as model:
        instance.gate.clear()
        late, patient = submit(model, request(1.0, timeout=0.001)), submit(model, request(2.0))
        assert isinstance(await asyncio.wait_for(late, GUARD), RequestExpired)
        assert (model.in_flight, instance.interrupts) == (1, 0)
        instance.gate.set()
        assert first(await asyncio.wait_for(patient, GUARD)) == 4.0
        assert len(instance.instance.ran[-1]["x"]) == 2
        assert first(await infer(model, request(5.0))) == 10.0


@in_loop
async def test_a_model_that_is_stuck_is_reported_and_refuses_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    async with gated(clock=clock, stuck_after=5.0) as (model, gate, blocker):
        waiting = submit(model, request(timeout=100.0))
        clock.now = 4.9
        model._dispatcher.dispatch()
        assert not (model.is_stuck or blocker.done() or waiting.done())
        clock.now = 5.0
        model._dispatcher.dispatch()
        held, queued = await gather(blocker, waiting)
        assert isinstance(held, ModelUnavailable) and isinstance(queued, ModelUnavailable)
        assert str(held) == "model 'm' is stuck: its run did not end within 5 s"
        refused = await infer(model, request())
        assert isinstance(refused, ModelUnavailable) and refused.retry_after == 60
        assert str(refused) == str(queued)
        assert "is stuck: no run of its 1 instances ended within 5 s" in str(refused)
        assert (model.is_stuck, model.stuck_instances, model.in_flight) == (True, 1, 0)
        gate.gate.set()
        while model.is_stuck:
            await asyncio.sleep(0)
        assert first(await infer(model, request(2.0))) == 4.0
    assert "'m' is stuck: a run of 1 requests has not ended after 5 s; 0 of 1 " in caplog.text
    assert "'m': the run that was stuck ended" in caplog.text


@in_loop
async def test_a_run_that_may_compile_is_reported_and_has_more_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    async with gated(clock=clock, stuck_after=5.0) as (model, gate, blocker):
        gate.is_compiling = True
        waiting = submit(model, request(2.0))
        for clock.now in (5.0, 59.9):
            model._dispatcher.dispatch()
            assert (model.is_stuck, model.stuck_instances, blocker.done()) == (False, 0, False)
        assert caplog.text.count("has not ended after 5 s: its engine may compile for these") == 1
        assert "is not stuck before 60 s" in caplog.text
        gate.gate.set()
        assert first((await gather(blocker, waiting))[1]) == 4.0
        assert "model 'm': the run of new shapes ended, 60 s" in caplog.text


@in_loop
async def test_a_run_that_compiles_for_too_long_is_stuck() -> None:
    clock = Clock()
    async with gated(clock=clock, stuck_after=5.0) as (model, gate, blocker):
        gate.is_compiling = True
        for clock.now in (5.0, 60.0):
            model._dispatcher.dispatch()
        assert model.is_stuck
        [answer] = await gather(blocker)
        assert str(answer) == "model 'm' is stuck: its run did not end within 60 s"
        gate.gate.set()


@in_loop
async def test_a_stuck_instance_leaves_the_requests_to_the_others() -> None:
    clock = Clock()
    stuck, other = GatedInstance(doubler()), doubler()
    async with served(stuck, other, clock=clock, stuck_after=5.0, check_batching=False) as model:
        stuck.gate.clear()
        held = None
        while held is None or held.done():  # until the one that is held up has a request
            held = submit(model, request(1.0))
            await asyncio.wait([held], timeout=0.01)
        clock.now = 5.0
        model._dispatcher.dispatch()
        assert isinstance(await asyncio.wait_for(held, GUARD), ModelUnavailable)
        assert (model.is_stuck, model.stuck_instances) == (False, 1)
        assert first(await infer(model, request(2.0))) == 4.0
        stuck.gate.set()


@in_loop
async def test_a_stuck_run_ends_its_sequences_requests() -> None:
    clock = Clock()
    values = {**SEQUENCES, "blocker": part(1.0, 1, is_start=True), "stuck_after": 5.0}
    async with gated(counter(), clock=clock, **values) as (model, gate, blocker):
        answers = [submit(model, part(1.0, 1)), submit(model, part(1.0, 2, is_start=True))]
        clock.now = 5.0
        model._dispatcher.dispatch()
        found = await gather(blocker, *answers)
        assert all(isinstance(each, ModelUnavailable) for each in found)
        assert model.in_flight == 0
        gate.gate.set()
        while model.is_stuck:
            await asyncio.sleep(0)
        again = await infer(model, part(3.0, 1, is_start=True))
        assert first(again) == 3.0


@in_loop
async def test_unloading_answers_the_requests_of_a_run_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onward.serving.batching.served_model._CLOSE_GRACE", 0.0)
    async with gated() as (model, gate, blocker):
        await asyncio.wait_for(model.close(), GUARD)
        answer = await asyncio.wait_for(blocker, GUARD)
        assert isinstance(answer, ModelUnavailable)
        assert str(answer) == "model 'm' was unloaded"
        gate.gate.set()


async def closed(model: ServedModel) -> None:
    """Close a model, whose batches have come back then."""
    await asyncio.wait_for(model.close(), GUARD)


@in_loop
async def test_clients_may_be_denied_timeouts_of_their_own() -> None:
    clock = Clock()
    async with gated(clock=clock, allow_timeout_override=False) as (model, gate, blocker):
        answer = submit(model, request(timeout=1.0))
        clock.now = 50.0
        gate.gate.set()
        assert isinstance((await gather(blocker, answer))[1], InferResponse)


@in_loop
async def test_the_most_urgent_request_is_first() -> None:
    settings = {"max_batch_size": 1, "priority_levels": 3, "default_priority": 2}
    async with gated(**settings) as (model, gate, blocker):
        priorities = [3, 0, 1, 2, 99]
        answers = [submit(model, request(float(n), priority=n)) for n in priorities]
        gate.gate.set()
        await gather(blocker, *answers)
        ran = [feeds["x"][0, 0] for feeds in gate.instance.ran[1:]]
        assert ran == [1, 0, 2, 99, 3]


@in_loop
async def test_a_cancelled_request_is_never_answered() -> None:
    async with gated() as (model, gate, blocker):
        done: list[Answer] = []
        cancel = model.submit(request(5.0), done.append)
        other = submit(model, request(6.0))
        cancel()
        assert model.queue_length == 1
        gate.gate.set()
        await gather(blocker, other)
        cancel()  # twice is fine
        assert done == []
        assert [len(feeds["x"]) for feeds in gate.instance.ran] == [1, 1]


@in_loop
async def test_a_request_that_started_cannot_be_cancelled() -> None:
    async with served(doubler()) as model:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        cancel = model.submit(request(), answer.set_result)
        assert first(await asyncio.wait_for(answer, GUARD)) == 2.0
        cancel()


@in_loop
async def test_a_fixed_delay_collects_requests() -> None:
    instance = doubler()
    async with served(instance, max_batch_size=4, batch_delay=600.0) as model:
        instance.ran.clear()
        answers = [submit(model, request(float(n))) for n in range(4)]
        await gather(*answers)  # the batch is full before its delay is over
        assert len(instance.ran) == 1


@in_loop
async def test_a_delay_ends() -> None:
    async with served(doubler(), batch_delay=0.001) as model:
        assert first(await infer(model, request())) == 2.0


@in_loop
async def test_instances_run_at_the_same_time() -> None:
    gates = [GatedInstance(doubler()) for _ in range(2)]
    loop = asyncio.get_running_loop()
    async with served(*gates, max_batch_size=1) as model:
        for gate in gates:
            gate.gate.clear()
            gate.is_running.clear()
        answers = [submit(model, request(float(n))) for n in range(2)]
        for gate in gates:
            assert await loop.run_in_executor(None, gate.is_running.wait, GUARD)
        for gate in gates:
            gate.gate.set()
        assert [first(each) for each in await gather(*answers)] == [0, 2]


def counter() -> FunctionInstance:
    """y = the sum of all x of a sequence so far; ready rows are counted."""
    inputs = [
        Spec("x", "FP32", (-1, 2)),
        Spec("h", "FP32", (-1, 2)),
        Spec("ready", "FP32", (-1, 1)),
    ]
    outputs = [Spec("y", "FP32", (-1, 2)), Spec("h_out", "FP32", (-1, 2))]
    return FunctionInstance(inputs, outputs, lambda x, h, ready: {"y": (h + x) * 1, "h_out": h + x})


SEQUENCES = {
    "sequence_states": [{"input": "h", "output": "h_out"}],
    "sequence_controls": {"ready": "ready"},
}


def part(value: float, name: int | str, **flags: bool) -> InferRequest:
    return request(value, sequence=SequencePart(name, **flags))


@in_loop
async def test_sequences_keep_their_state_and_are_batched_together() -> None:
    values = {**SEQUENCES, "blocker": part(0.0, 99, is_start=True), "padded_batch_sizes": [4]}
    async with gated(counter(), **values) as (model, gate, blocker):
        assert [spec.name for spec in model.inputs] == ["x"]
        assert [spec.name for spec in model.outputs] == ["y"]
        answers = [
            submit(model, part(float(name), name, is_start=step == 0, is_end=step == 2))
            for step in range(3)
            for name in (1, 2, 3)
        ]
        assert model.queue_length == 9
        gate.gate.set()
        found = await gather(blocker, *answers)
        sums = [first(answer) for answer in found[1:]]
        assert sums == [1, 2, 3, 2, 4, 6, 3, 6, 9]
        assert list(found[1].outputs) == ["y"]  # type: ignore[union-attr]
        ready = [feeds["ready"][:, 0].tolist() for feeds in gate.instance.ran[1:]]
        assert ready == [[1, 1, 1, 0]] * 3
        late = await infer(model, part(1.0, 1))
        assert isinstance(late, RequestInvalid)
        assert "must specify the START flag" in str(late)


@in_loop
async def test_a_cancelled_part_lets_the_next_of_its_sequence_through() -> None:
    values = {**SEQUENCES, "blocker": part(0.0, 99, is_start=True)}
    async with gated(counter(), **values) as (model, gate, blocker):
        start = submit(model, part(1.0, 1, is_start=True))
        dropped: list[Answer] = []
        cancels = [model.submit(part(10.0, 1), dropped.append) for _ in range(2)]
        lone = model.submit(part(5.0, 2, is_start=True), dropped.append)
        end = submit(model, part(1.0, 1, is_end=True))
        for cancel in (*cancels, lone):
            cancel()
        gate.gate.set()
        found = await gather(blocker, start, end)
        assert [first(each) for each in found[1:]] == [1, 2]
        assert dropped == []


@in_loop
async def test_a_part_that_its_sequence_holds_expires_while_another_one_runs() -> None:
    values = {**SEQUENCES, "blocker": part(1.0, 1, is_start=True)}
    async with gated(counter(), **values) as (model, gate, blocker):
        expiring = part(10.0, 1)
        expiring.timeout = 0.001
        held = submit(model, part(2.0, 1, is_end=True))
        answer = await infer(model, expiring)
        assert isinstance(answer, RequestExpired)
        assert not blocker.done() and model.queue_length == 1
        gate.gate.set()
        assert [first(each) for each in await gather(blocker, held)] == [1, 3]


@in_loop
async def test_parts_after_a_failed_start_are_refused() -> None:
    values = {**SEQUENCES, "blocker": part(0.0, 99, is_start=True), "max_queue_size": 3000}
    async with gated(counter(), **values) as (model, gate, blocker):
        cancel = model.submit(part(1.0, 1, is_start=True), lambda answer: None)
        rest = [submit(model, part(1.0, 1)) for _ in range(2000)]
        cancel()
        gate.gate.set()
        found = await gather(blocker, *rest)
        assert all(isinstance(each, RequestInvalid) for each in found[1:])
        assert model.queue_length == 0


@in_loop
async def test_a_request_without_sequence_is_refused_by_a_model_with_state() -> None:
    async with served(counter(), **SEQUENCES) as model:
        answer = await infer(model, request())
        assert isinstance(answer, RequestInvalid)
        assert "correlation ID" in str(answer)
        answer = await infer(model, part(1.0, "text", is_start=True, is_end=True))
        assert first(answer) == 1.0


@in_loop
async def test_a_recurrent_model_in_parts_equals_the_whole_sequence() -> None:
    random = np.random.default_rng(0)
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("time", "batch", 4))
    h = op.input("h", "float32", (1, "batch", 3))
    w, r = (random.normal(size=(1, 9, size)).astype(np.float32) for size in (4, 3))
    y, h_out = op.GRU(x, w, r, None, None, h, hidden_size=3, outputs=2)
    instance = SessionInstance(op.model(y=op.Squeeze(y, np.array([1])), h_out=h_out))
    whole = random.normal(size=(6, 5, 4)).astype(np.float32)  # (time, clients, features)
    expected = instance.run({"x": whole, "h": np.zeros((1, 5, 3), np.float32)})["y"]
    settings = {
        "sequence_states": [{"input": "h", "output": "h_out"}],
        "batch_axes": {"x": 1, "h": 1, "y": 1, "h_out": 1},
        "max_batch_size": 4,
    }
    async with served(instance, **settings) as model:
        assert model.batching.is_checked
        assert [spec.name for spec in (*model.inputs, *model.outputs)] == ["x", "y"]
        answers = [
            submit(
                model,
                InferRequest(
                    "m",
                    {"x": whole[2 * step : 2 * step + 2, client : client + 1]},
                    sequence=SequencePart(client + 1, step == 0, step == 2),
                ),
            )
            for step in range(3)
            for client in range(5)
        ]
        found = await gather(*answers)
        assert model.statistics()["execution_count"] < 15
    for number, answer in enumerate(found):
        step, client = divmod(number, 5)
        assert isinstance(answer, InferResponse)
        np.testing.assert_allclose(
            answer.outputs["y"], expected[2 * step : 2 * step + 2, client : client + 1], rtol=1e-4
        )
