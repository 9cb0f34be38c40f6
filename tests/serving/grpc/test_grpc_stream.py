"""ModelStreamInfer: order, errors, cancellation and the end of the server."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest

from onward.errors import AccessDenied
from onward.serving.grpc import grpc_stream
from onward.serving.requests import SequencePart
from tests.serving.grpc.test_grpc_service import SIMPLE, until_cancelled
from tests.serving.grpc_client import infer_message, run, serving
from tests.serving.numpy_core import NumpyCore


def test_answers_come_in_the_order_of_their_requests() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.held = []
        async with serving(core) as client:
            stream = client.stream()
            for i in range(3):
                await stream.write(infer_message("simple", SIMPLE, id=str(i)))
            while len(core.held) < 3:
                await asyncio.sleep(0)
            for answer in reversed(core.held):
                answer()
            await stream.done_writing()
            answers = [each async for each in stream]
            assert [each.infer_response.id for each in answers] == ["0", "1", "2"]
            final = answers[0].infer_response.parameters["triton_final_response"]
            assert final.bool_param
            assert answers[0].infer_response.raw_output_contents[1] == bytes(64)

    run(main())


def test_an_error_does_not_end_the_stream() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            stream = client.stream()
            await stream.write(infer_message("none", {}, id="a"))
            failed = await stream.read()
            assert failed.error_message == "Request for unknown model: 'none' is not found"
            assert failed.infer_response.id == "a"
            await stream.write(infer_message("simple", {"x": ("FP8", [1], b"")}))
            assert "unknown datatype" in (await stream.read()).error_message
            await stream.write(infer_message("simple", SIMPLE))
            assert (await stream.read()).infer_response.outputs

    run(main())


def test_an_error_ends_the_stream_if_the_client_says_so() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            stream = client.stream(metadata=(("triton_grpc_error", "true"),))
            await stream.write(infer_message("none", {}))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND

    run(main())


def test_a_sequence_runs_over_a_stream() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            stream = client.stream()
            for i in range(3):
                tensor = ("INT32", [1, 1], np.int32(i + 1).tobytes())
                message = infer_message("accumulator", {"INPUT": tensor})
                message.parameters["sequence_id"].int64_param = 5
                message.parameters["sequence_start"].bool_param = i == 0
                message.parameters["sequence_end"].bool_param = i == 2
                await stream.write(message)
            await stream.done_writing()
            totals = [
                int(np.frombuffer(each.infer_response.raw_output_contents[0], np.int32)[0])
                async for each in stream
            ]
            assert totals == [1, 3, 6]
            assert core.requests[2].sequence == SequencePart(5, is_end=True)

    run(main())


def test_a_stream_is_read_no_further_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_stream, "IN_FLIGHT", 4)

    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            stream = client.stream()
            for i in range(20):
                await stream.write(infer_message("simple", SIMPLE, id=str(i)))
            await stream.done_writing()
            answers = [each.infer_response.id async for each in stream]
            assert answers == [str(i) for i in range(20)]

    run(main())


def test_a_cancelled_stream_cancels_its_requests() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.held = []
        async with serving(core) as client:
            stream = client.stream()
            for _ in range(3):
                await stream.write(infer_message("simple", SIMPLE))
            while len(core.held) < 3:
                await asyncio.sleep(0)
            stream.cancel()
            await until_cancelled(core, 3)

    run(main())


def test_a_stopping_server_answers_and_ends_its_streams() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.held = []
        async with serving(core) as client:
            idle, busy = client.stream(), client.stream()
            await busy.write(infer_message("simple", SIMPLE))
            await idle.write(infer_message("none", {}))
            while len(core.held) < 2:
                await asyncio.sleep(0)
            stopped = asyncio.create_task(client.server.stop(30))  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            for answer in core.held:
                answer()
            assert (await busy.read()).infer_response.outputs
            for stream in (busy, idle):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    while await stream.read() is not grpc.aio.EOF:
                        pass
                assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            await stopped

    run(main())


def test_a_stream_without_its_key_is_refused() -> None:
    class Closed:
        def check(self, key: str | None, admin: bool, client: str) -> None:
            raise AccessDenied("a key is needed")

    async def main() -> None:
        async with serving(NumpyCore(), access=Closed()) as client:
            stream = client.stream()
            await stream.write(infer_message("simple", SIMPLE))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED

    run(main())
