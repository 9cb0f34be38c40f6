"""batch_run: a batch that fails is run one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from onward.errors import (
    DeadlineExceeded,
    FeedError,
    ModelUnavailable,
    RequestExpired,
    RequestInvalid,
    WorkerDied,
)
from tests.serving.instances import FunctionInstance, GatedInstance, doubler
from tests.serving.served_in_loop import (
    first,
    gated,
    gather,
    in_loop,
    infer,
    request,
    served,
    submit,
)


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
async def test_a_request_that_was_answered_does_not_run_again_alone() -> None:
    instance = GatedInstance(refuse_negative(lambda: KeyError("face")))
    async with served(instance) as model:
        instance.gate.clear()
        late, bad = submit(model, request(1.0, timeout=0.001)), submit(model, request(-9.0))
        assert isinstance(await asyncio.wait_for(late, 60), RequestExpired)
        instance.gate.set()
        assert isinstance(await asyncio.wait_for(bad, 60), RequestInvalid)
        assert [len(feeds["x"]) for feeds in instance.instance.ran[-2:]] == [2, 1]
