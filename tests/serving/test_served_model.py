"""served_model: requests in, answers out, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import (
    DeadlineExceeded,
    FeedError,
    ModelUnavailable,
    OptionError,
    RequestExpired,
    RequestInvalid,
    ServerOverloaded,
    WorkerDied,
)
from onward.serving.instance import Instance
from onward.serving.observer import RequestTimes
from onward.serving.requests import InferRequest, InferResponse, RequestedOutput, SequencePart
from onward.serving.requests import TensorSpec as Spec
from onward.serving.served_model import ServedModel
from onward.serving.settings import ModelSettings
from tests.serving.instances import (
    FunctionInstance,
    GatedInstance,
    SessionInstance,
    doubler,
    in_loop,
)

GUARD = 60.0  # seconds; a test that reaches it has failed
Answer = InferResponse | Exception


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, RequestTimes, Exception | None]] = []
        self.batches: list[tuple[int, int]] = []
        self.lengths: list[int] = []

    def on_request(
        self, model: str, version: str, request_id: str, times: RequestTimes, error: Any
    ) -> None:
        self.requests.append((request_id, times, error))

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None:
        self.batches.append((requests, rows))

    def on_queue(self, model: str, version: str, length: int) -> None:
        self.lengths.append(length)


@asynccontextmanager
async def served(
    *instances: Instance, clock: Any = None, observer: Any = None, **values: Any
) -> AsyncIterator[ServedModel]:
    options = {} if clock is None else {"clock": clock}
    settings = ModelSettings.model_validate({"warm_up": False, **values})
    loop = asyncio.get_running_loop()
    model = ServedModel("m", "1", instances, settings, loop=loop, observer=observer, **options)
    try:
        await model.prepare()
        yield model
    finally:
        await model.close()


def request(value: float = 1.0, rows: int = 1, **values: Any) -> InferRequest:
    return InferRequest("m", {"x": np.full((rows, 2), value, np.float32)}, **values)


def submit(model: ServedModel, asked: InferRequest) -> asyncio.Future[Answer]:
    """A future of the answer; a second answer would fail the test."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    model.submit(asked, answer.set_result)
    return answer


async def infer(model: ServedModel, asked: InferRequest) -> Answer:
    return await asyncio.wait_for(submit(model, asked), GUARD)


async def gather(*answers: asyncio.Future[Answer]) -> list[Answer]:
    return await asyncio.wait_for(asyncio.gather(*answers), GUARD)


def first(answer: Answer, name: str = "y") -> float:
    assert isinstance(answer, InferResponse), answer
    return float(answer.outputs[name].reshape(-1)[0])


@asynccontextmanager
async def gated(
    instance: FunctionInstance | None = None, blocker: InferRequest | None = None, **values: Any
) -> AsyncIterator[tuple[ServedModel, GatedInstance, asyncio.Future[Answer]]]:
    """A model whose only instance runs a first request until its gate is opened."""
    gate = GatedInstance(instance or doubler())
    async with served(gate, **values) as model:
        gate.instance.ran.clear()
        gate.gate.clear()
        gate.is_running.clear()
        blocked = submit(model, blocker or request(0.0, id="blocker"))
        loop = asyncio.get_running_loop()
        try:
            assert await loop.run_in_executor(None, gate.is_running.wait, GUARD)
            yield model, gate, blocked
        finally:
            gate.gate.set()


@in_loop
async def test_a_request_is_answered() -> None:
    async with served(doubler()) as model:
        answer = await infer(model, request(3.0, rows=2, id="a"))
        assert isinstance(answer, InferResponse)
        assert (answer.model, answer.version, answer.id) == ("m", "1", "a")
        assert answer.outputs["y"].tolist() == [[6.0, 6.0]] * 2
        assert (model.batching.max_size, model.queue_length) == (32, 0)
        assert model.inputs[0].shape == (-1, 2)


@in_loop
async def test_requests_that_wait_form_the_next_batch() -> None:
    log = Log()
    async with gated(observer=log) as (model, gate, blocker):
        answers = [submit(model, request(float(n), rows=n % 3 + 1)) for n in range(6)]
        assert model.queue_length == 6
        gate.gate.set()
        found = await gather(blocker, *answers)
        assert [first(answer) for answer in found[1:]] == [2.0 * n for n in range(6)]
        assert [len(each.outputs["y"]) for each in found[1:]] == [1, 2, 3, 1, 2, 3]  # type: ignore[union-attr]
        assert [len(feeds["x"]) for feeds in gate.instance.ran] == [1, 12]
    assert log.batches == [(1, 1), (6, 12)]
    assert max(log.lengths) == 6
    assert log.lengths[-1] == 0
    assert [times.batch_size for _, times, _ in log.requests] == [1] + [12] * 6


@in_loop
async def test_requests_of_one_iteration_of_the_loop_form_a_batch() -> None:
    instance = doubler()
    async with served(instance) as model:
        instance.ran.clear()
        await gather(*[submit(model, request()) for _ in range(5)])
        assert len(instance.ran) == 1


@in_loop
async def test_requests_of_different_shapes_are_not_joined() -> None:
    specs = [Spec("x", "FP32", (-1, -1))], [Spec("y", "FP32", (-1, -1))]
    instance = FunctionInstance(*specs, lambda x: {"y": 2 * x})
    asked = InferRequest("m", {"x": np.zeros((1, 2), np.float32)})
    async with gated(instance, blocker=asked) as (model, gate, blocker):
        arrays = [np.full((1, width), width, np.float32) for width in (3, 4, 3)]
        answers = [submit(model, InferRequest("m", {"x": array})) for array in arrays]
        gate.gate.set()
        found = await gather(blocker, *answers)
        assert [first(answer) for answer in found[1:]] == [6, 8, 6]
        assert [feeds["x"].shape for feeds in instance.ran[1:]] == [(2, 3), (1, 4)]


@in_loop
async def test_a_model_that_is_not_batched_runs_requests_one_by_one() -> None:
    async with gated(max_batch_size=0) as (model, gate, blocker):
        answers = [submit(model, request(float(n), rows=40)) for n in range(3)]
        gate.gate.set()
        found = await gather(blocker, *answers)
        assert [first(answer) for answer in found[1:]] == [0, 2, 4]
        assert [len(feeds["x"]) for feeds in gate.instance.ran] == [1, 40, 40, 40]


@in_loop
async def test_a_large_request_runs_alone_in_auto_and_is_refused_by_an_explicit_limit() -> None:
    async with served(doubler()) as model:
        answer = await infer(model, request(rows=100))
        assert isinstance(answer, InferResponse)
        assert len(answer.outputs["y"]) == 100
    async with served(doubler(), max_batch_size=8) as model:
        answer = await infer(model, request(rows=9))
        assert isinstance(answer, RequestInvalid)
        assert str(answer) == "inference request batch-size must be <= 8 for 'm'"


@in_loop
async def test_outputs_are_those_asked_for_in_their_order() -> None:
    outputs = [Spec("y", "FP32", (-1, 2)), Spec("z", "FP32", (-1, 2)), Spec("w", "FP32", (-1, 2))]
    instance = doubler(outputs=outputs, function=lambda x: {"y": x, "z": 2 * x, "w": 3 * x})
    async with served(instance) as model:
        asked = request(outputs=(RequestedOutput("w"), RequestedOutput("y")))
        answer = await infer(model, asked)
        assert isinstance(answer, InferResponse)
        assert list(answer.outputs) == ["w", "y"]
        answer = await infer(model, request())
        assert isinstance(answer, InferResponse)
        assert list(answer.outputs) == ["y", "z", "w"]


@in_loop
async def test_a_bad_request_is_refused_before_it_is_queued() -> None:
    log = Log()
    async with served(doubler(), observer=log) as model:
        answer = await infer(model, InferRequest("m", {"y": np.zeros((1, 2))}, id="bad"))
        assert isinstance(answer, RequestInvalid)
        assert str(answer).startswith("unexpected inference input 'y' for model 'm'")
        assert model.statistics()["inference_stats"]["fail"]["count"] == 1
    assert [(each[0], each[2]) for each in log.requests] == [("bad", answer)]


def refuse_negative(error: Callable[[], BaseException]) -> FunctionInstance:
    def run(x: np.ndarray) -> dict[str, np.ndarray]:
        if (x == -9).any():
            raise error()
        return {"y": 2 * x}

    return doubler(function=run)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (lambda: FeedError("x is\n negative"), RequestInvalid, "request: x is negative"),
        (lambda: KeyError("face"), RequestInvalid, "request: KeyError: 'face'"),
        (lambda: SystemExit(3), RequestInvalid, "request: SystemExit: 3"),
        (lambda: MemoryError(), RequestInvalid, "request: MemoryError: MemoryError"),
        (lambda: RequestInvalid("own words"), RequestInvalid, "own words"),
        (lambda: WorkerDied("killed by signal 9"), ModelUnavailable, "killed by signal 9"),
        (lambda: DeadlineExceeded("5 s"), RequestExpired, "model 'm' took too long: 5 s"),
    ],
)
@in_loop
async def test_a_failing_request_does_not_harm_its_neighbours(
    error: Callable[[], BaseException], kind: type[Exception], text: str
) -> None:
    instance = refuse_negative(error)
    async with gated(instance) as (model, gate, blocker):
        answers = [submit(model, request(value)) for value in (1.0, -9.0, 3.0)]
        gate.gate.set()
        _, good, bad, other = await gather(blocker, *answers)
        assert (first(good), first(other)) == (2.0, 6.0)
        assert type(bad) is kind
        assert text in str(bad)
        assert "\n" not in str(bad)
        assert [len(feeds["x"]) for feeds in instance.ran] == [1, 3, 1, 1, 1]
        stats = model.statistics()
        assert (stats["inference_count"], stats["execution_count"]) == (3, 3)
        assert stats["inference_stats"]["fail"]["count"] == 1
        assert [each["batch_size"] for each in stats["batch_stats"]] == [1]


@in_loop
async def test_a_lone_request_that_kills_its_worker_runs_once() -> None:
    instance = refuse_negative(lambda: WorkerDied("killed"))
    async with served(instance) as model:
        instance.ran.clear()
        answer = await infer(model, request(-9.0))
        assert isinstance(answer, ModelUnavailable)
        assert answer.retry_after == 1.0
        assert len(instance.ran) == 1
        assert first(await infer(model, request(1.0))) == 2.0


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


@in_loop
async def test_draining_finishes_what_was_accepted() -> None:
    async with gated() as (model, gate, blocker):
        answers = [submit(model, request(float(n))) for n in range(3)]
        drained = asyncio.ensure_future(model.drain(GUARD))
        await asyncio.sleep(0)
        refused = await infer(model, request())
        assert isinstance(refused, ModelUnavailable)
        assert refused.retry_after == 1.0
        assert not drained.done()
        gate.gate.set()
        await drained
        assert [first(each) for each in await gather(blocker, *answers)] == [0, 0, 2, 4]


@in_loop
async def test_draining_waits_for_no_delay() -> None:
    async with served(doubler(), batch_delay=600.0) as model:
        answers = [submit(model, request(float(n))) for n in range(3)]
        await asyncio.wait_for(model.drain(GUARD), GUARD)
        assert [first(each) for each in await gather(*answers)] == [0, 2, 4]


@in_loop
async def test_draining_ends_after_its_timeout() -> None:
    async with gated() as (model, _, blocker):
        await model.drain(0.0)
        assert not blocker.done()


@in_loop
async def test_closing_answers_what_waits_and_closes_the_instances() -> None:
    async with gated() as (model, gate, blocker):
        waiting = submit(model, request())
        closed = asyncio.ensure_future(model.close())
        answer = await asyncio.wait_for(waiting, GUARD)
        assert isinstance(answer, ModelUnavailable)
        gate.gate.set()
        await closed
        assert isinstance(await asyncio.wait_for(blocker, GUARD), InferResponse)
        assert gate.instance.is_closed


@in_loop
async def test_a_model_that_was_never_prepared_can_be_closed() -> None:
    instance = doubler()
    loop = asyncio.get_running_loop()
    model = ServedModel("m", "1", [instance], ModelSettings(), loop=loop)
    assert isinstance(await infer(model, request()), ModelUnavailable)
    assert model.batching.reason == "it is being loaded"
    await model.close()
    await model.close()
    assert instance.is_closed


@in_loop
async def test_settings_that_ask_too_much_are_refused_when_the_model_is_prepared() -> None:
    instance = doubler(function=lambda x: {"y": x - x.mean(0)})
    with pytest.raises(OptionError, match="joining requests changes answers"):
        async with served(instance, max_batch_size=8):
            pass
    assert instance.is_closed
    async with served(instance) as model:
        assert model.batching.reason.startswith("joining requests changes answers")


@in_loop
async def test_every_instance_is_warmed_up() -> None:
    instances = [doubler(), doubler()]
    async with served(*instances, warm_up=True, max_batch_size=0):
        assert [len(each.ran) for each in instances] == [1, 1]


@in_loop
async def test_a_client_that_fails_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(answer: Answer) -> None:
        raise OSError("the connection is gone")

    async with served(doubler()) as model:
        model.submit(request(), fail)
        assert first(await infer(model, request())) == 2.0
    assert "a request cannot be answered" in caplog.text


@in_loop
async def test_identical_requests_are_answered_from_the_cache() -> None:
    instance = doubler()
    async with served(instance, result_cache_bytes=1000) as model:
        instance.ran.clear()
        for value in (1.0, 1.0, 2.0, 1.0):
            answer = await infer(model, request(value, id=str(value)))
            assert isinstance(answer, InferResponse)
            assert (answer.id, answer.outputs["y"].tolist()) == (str(value), [[2 * value] * 2])
        assert len(instance.ran) == 2
        stats = model.statistics()["inference_stats"]
        assert (stats["cache_hit"]["count"], stats["cache_miss"]["count"]) == (2, 2)
        assert stats["success"]["count"] == 4


@in_loop
async def test_statistics_count_rows_and_batches() -> None:
    async with gated() as (model, gate, blocker):
        answers = [submit(model, request(rows=2)) for _ in range(3)]
        gate.gate.set()
        await gather(blocker, *answers)
        stats = model.statistics()
        assert (stats["inference_count"], stats["execution_count"]) == (7, 2)
        assert stats["inference_stats"]["success"]["count"] == 4
        assert [each["batch_size"] for each in stats["batch_stats"]] == [1, 6]
        assert stats["last_inference"] > 0


@in_loop
async def test_requests_without_rows_are_answered() -> None:
    async with gated(padded_batch_sizes=[4, 8]) as (model, gate, blocker):
        answers = [submit(model, request(rows=rows)) for rows in (0, 1, 0)]
        gate.gate.set()
        found = await gather(blocker, *answers)
        assert [len(each.outputs["y"]) for each in found[1:]] == [0, 1, 0]  # type: ignore[union-attr]


@in_loop
async def test_a_model_without_inputs_is_served() -> None:
    instance = FunctionInstance([], [Spec("y", "FP32", ())], lambda: {"y": np.float32(3) * 1})
    async with served(instance, warm_up=True) as model:
        assert model.batching.reason == "it has no inputs"
        found = await gather(*[submit(model, InferRequest("m", {})) for _ in range(2)])
        assert [each.outputs["y"] for each in found] == [3, 3]  # type: ignore[union-attr]


@in_loop
async def test_texts_reach_the_model_decoded() -> None:
    op = onward.OpBuilder()
    text = op.input("x", "string", ("batch",))
    instance = SessionInstance(op.model(y=op.StringConcat(text, text)))
    async with served(instance) as model:
        assert model.batching.max_size == 32
        good = InferRequest("m", {"x": np.array(["ä".encode(), b"b"], object)})
        bad = InferRequest("m", {"x": np.array([b"\xff"], object)})
        answer, refused = await gather(submit(model, good), submit(model, bad))
        assert isinstance(answer, InferResponse)
        assert answer.outputs["y"].tolist() == ["ää", "bb"]
        assert isinstance(refused, RequestInvalid)


@in_loop
async def test_a_session_gives_the_same_answers_joined_and_alone() -> None:
    random = np.random.default_rng(0)
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 8))
    hidden = op.Relu(op.MatMul(x, random.normal(size=(8, 16)).astype(np.float32)))
    y = op.MatMul(hidden, random.normal(size=(16, 3)).astype(np.float32))
    instance = SessionInstance(op.model(y=y))
    arrays = [random.normal(size=(n % 4 + 1, 8)).astype(np.float32) for n in range(40)]
    expected = [instance.run({"x": array})["y"] for array in arrays]
    async with served(instance, instances=2) as model:
        assert model.batching.is_checked
        found = await gather(*[submit(model, InferRequest("m", {"x": each})) for each in arrays])
        for answer, wanted in zip(found, expected):
            assert isinstance(answer, InferResponse)
            np.testing.assert_allclose(answer.outputs["y"], wanted, rtol=1e-4, atol=1e-5)


@in_loop
async def test_mixed_lengths_are_padded_with_mask_and_cut_back() -> None:
    specs = [
        Spec("ids", "INT64", (-1, -1), ("batch", "length")),
        Spec("mask", "INT64", (-1, -1), ("batch", "length")),
    ]
    outputs = [Spec("hidden", "FP32", (-1, -1)), Spec("mean", "FP32", (-1,))]

    def embed(ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        hidden = (ids * 0.5).astype(np.float32)
        return {"hidden": hidden, "mean": (hidden * mask).sum(1) / mask.sum(1)}

    instance = FunctionInstance(specs, outputs, embed)
    padding = {"ids": {"mask": "mask", "outputs": {"hidden": 1}, "value": 77}}
    blocker_request = InferRequest("m", {"ids": np.ones((1, 1), np.int64)})
    values = {"padding": padding, "length_buckets": [4, 8], "blocker": blocker_request}
    async with gated(instance, **values) as (model, gate, blocker):
        arrays = [np.arange(1, n + 1)[None] for n in (2, 7, 4, 5, 1)]
        answers = [submit(model, InferRequest("m", {"ids": array})) for array in arrays]
        gate.gate.set()
        found = (await gather(blocker, *answers))[1:]
        assert [feeds["ids"].shape for feeds in instance.ran[1:]] == [(3, 4), (2, 7)]
        for array, answer in zip(arrays, found):
            assert isinstance(answer, InferResponse)
            np.testing.assert_array_equal(answer.outputs["hidden"], array * 0.5)
            assert first(answer, "mean") == pytest.approx(array.mean() * 0.5)


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
