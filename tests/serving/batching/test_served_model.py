"""served_model: requests in, answers out, whatever happens in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import onward
from onward.errors import (
    ModelUnavailable,
    OptionError,
    RequestInvalid,
)
from onward.serving.batching.batch_joining import JoinRule
from onward.serving.batching.served_model import ServedModel
from onward.serving.models.session_instance import SessionInstance as SessionModelInstance
from onward.serving.requests import Array, InferRequest, InferResponse, RequestedOutput
from onward.serving.requests import TensorSpec as Spec
from onward.serving.settings import ModelSettings
from tests.serving.instances import FunctionInstance, SessionInstance, doubler
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
from tests.serving.small_models import default_model


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


@in_loop
@pytest.mark.parametrize("sizes", [[], [4, 8]])
async def test_requests_may_replace_initializers_while_others_are_joined(sizes: list[int]) -> None:
    instance = SessionModelInstance(onward.InferenceSession(default_model()))
    x, three = np.ones((1, 4), np.float32), np.array(3, np.float32)
    async with served(instance, max_batch_size=8, padded_batch_sizes=sizes) as model:
        assert model.batching.is_checked
        feeds = [{"x": x}, {"x": x, "factor": three}, {"x": x}]
        found = await gather(*[submit(model, InferRequest("m", each)) for each in feeds])
        assert [first(answer) for answer in found] == [24, 36, 24]
        batches = model.statistics()["batch_stats"]
    assert {each["batch_size"]: each["compute_infer"]["count"] for each in batches} == {1: 1, 2: 1}


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


@in_loop
async def test_each_of_many_requests_gets_its_own_answer_once() -> None:
    def double(x: np.ndarray) -> dict[str, np.ndarray]:
        if (x < 0).any():
            raise ValueError("negative")
        return {"y": 2 * x}

    random = np.random.default_rng(0)
    instances = [doubler(function=double) for _ in range(3)]
    settings = {"preferred_batch_sizes": [4, 8], "padded_batch_sizes": [1, 2, 4, 8]}
    async with served(*instances, **settings) as model:
        answers: dict[int, list[Answer]] = {number: [] for number in range(1, 601)}
        dropped, bad = set(), set()
        for number, answer in answers.items():
            is_bad = random.random() < 0.05
            value = -float(number) if is_bad else float(number)
            cancel = model.submit(request(value, rows=int(random.integers(1, 5))), answer.append)
            if random.random() < 0.05:
                cancel()
                dropped.add(number)
            elif is_bad:
                bad.add(number)
            if random.random() < 0.1:
                await asyncio.sleep(0)
        await asyncio.wait_for(model.drain(GUARD), GUARD)
    for number, found in answers.items():
        assert len(found) == (number not in dropped)
        if number in bad:
            assert isinstance(found[0], RequestInvalid)
        elif found:
            assert first(found[0]) == 2.0 * number


@in_loop
async def test_a_quick_model_runs_in_the_loops_thread() -> None:
    threads: list[int] = []

    class Noting(FunctionInstance):
        is_computation = True

        def run(
            self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
        ) -> dict[str, Array]:
            threads.append(threading.get_ident())
            return super().run(feeds, outputs)

    instance = Noting(doubler().inputs, doubler().outputs, lambda x: {"y": 2 * x})
    clock = Clock()  # stands still: each run takes no time
    async with served(instance, clock=clock) as model:
        for n in range(40):
            assert first(await infer(model, request(float(n)))) == 2.0 * n
        here = threading.get_ident()
        assert threads[-1] == here and threads[-40] != here
        answers = await gather(*[submit(model, request(float(n))) for n in range(5)])
        assert [first(each) for each in answers] == [0.0, 2.0, 4.0, 6.0, 8.0]
        bad = await infer(model, InferRequest("m", {"x": np.zeros((1, 3), np.float32)}))
        assert isinstance(bad, RequestInvalid)


def slow_doubler(clock: Clock) -> FunctionInstance:
    """A model that takes 10 ms for each row, joined or not."""

    def run(x: Array) -> dict[str, Array]:
        clock.now += 0.01 * len(x)
        return {"y": 2 * x}

    return FunctionInstance(doubler().inputs, doubler().outputs, run)


@in_loop
async def test_requests_are_joined_only_where_that_saves_time() -> None:
    cases = [
        ({}, JoinRule.ALONE),
        ({"batch_delay": 0.0}, JoinRule.ALL),
        ({"preferred_batch_sizes": [2]}, JoinRule.ALL),
        ({"padded_batch_sizes": [4]}, JoinRule.ALL),
        ({"max_batch_size": 1}, JoinRule.ALONE),
    ]
    for settings, expected in cases:
        clock, log = Clock(), Log()
        instance = slow_doubler(clock)
        async with served(instance, clock=clock, observer=log, **settings) as model:
            for _ in range(80):
                answers = await gather(*[submit(model, request(float(n))) for n in range(4)])
                assert [first(each) for each in answers] == [0.0, 2.0, 4.0, 6.0]
            assert model.joining == expected, settings
            assert (len(log.batches) > 170) == (expected == JoinRule.ALONE)


@in_loop
async def test_a_change_of_joining_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level("INFO", "onward.serving"):
        async with served(slow_doubler(clock), clock=clock) as model:
            while model.joining != JoinRule.ALONE:
                await gather(*[submit(model, request(float(n))) for n in range(4)])
    found = [each.getMessage() for each in caplog.records]
    assert found == [
        "model 'm': joined requests take 0.99 times as long for each element as alone: "
        "from now on each runs alone"
    ]
